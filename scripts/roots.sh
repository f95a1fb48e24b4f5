# Sourced, behind lib.sh, by the scripts that work in minimal roots of Debian: makes them, and runs programs in them. The roots lie in
# .tmp/roots and are kept. It needs debootstrap and root; MIRROR names another mirror than debootstrap's own.

ROOTS=$TMPDIR/roots
# What a root needs where fastlog is compiled.
BUILD_PACKAGES=python3,python3-venv,python3-dev,gcc,libc6-dev
CERTIFICATES=${PIP_CERT:-/etc/ssl/certs/ca-certificates.crt} # a network may have its own

check_roots() {
    if ((EUID != 0)) || ! command -v debootstrap >/dev/null; then
        say "a root of Debian needs root, and debootstrap (apt-get install -y debootstrap)"
        exit 2
    fi
}

# Makes the root $1, called after a release and what it is for (trixie-build), with the packages $2. Quick where it exists.
make_root() {
    local root=$ROOTS/$1
    check_roots
    mkdir -p "$ROOTS"
    if [[ -e $root/complete ]]; then return; fi
    say "making a root of Debian's ${1%%-*}"
    rm -rf "$root"
    run_long "$root.log" debootstrap --variant=minbase --include="$2" "${1%%-*}" "$root" ${MIRROR:+"$MIRROR"}
    touch "$root/complete"
}

# Copies the files of the checkout to the directory $1, as they are now, over those of an earlier copy.
copy_checkout() {
    mkdir -p "$1"
    find "$1" -mindepth 1 -maxdepth 1 ! -name .venv ! -name .tmp ! -name build -exec rm -rf {} +
    git -C "$ROOT" ls-files -z --cached --others --exclude-standard | (
        cd "$ROOT"
        xargs -0 sh -c 'for path do [ ! -e "$path" ] || printf "%s\0" "$path"; done' - |
            tar --create --null --files-from -
    ) | tar --extract --directory "$1"
}

# Runs a program in the root whose directory is $1: in_root DIRECTORY [SOURCE:TARGET …] -- [NAME=VALUE …] PROGRAM [ARGUMENT …].
# Each SOURCE is mounted at TARGET in there, as are the network's addresses, certificates and pip's cache. The mounts end with
# the last process in there.
in_root() {
    local root=$1 mounts=()
    shift
    while [[ $1 != -- ]]; do
        mounts+=("$1")
        shift
    done
    shift
    mkdir -p "$root/root/.cache/pip" "$root/etc/ssl/certs" "$TMPDIR/pip-cache"
    cp /etc/resolv.conf /etc/hosts "$root/etc/"
    if [[ -r $CERTIFICATES ]]; then cp "$CERTIFICATES" "$root/etc/ssl/certs/fastlog.crt"; fi
    unshare --mount bash -c '
        set -eu
        root=$1
        shift
        mount -t proc proc "$root/proc"
        mount --rbind /dev "$root/dev"
        while [[ $1 != -- ]]; do
            mkdir -p "$root/${1#*:}"
            mount --bind "${1%%:*}" "$root/${1#*:}"
            shift
        done
        shift
        exec chroot "$root" "$@"
    ' - "$root" "$TMPDIR/pip-cache:root/.cache/pip" "${mounts[@]}" -- \
        env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 TERM="${TERM:-dumb}" \
        PIP_CERT=/etc/ssl/certs/fastlog.crt PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore \
        ${http_proxy:+http_proxy="$http_proxy"} ${https_proxy:+https_proxy="$https_proxy"} "$@"
}
