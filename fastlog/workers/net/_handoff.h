/* Taking a connection in: its descriptor and what is known of it, over a unix socket (SCM_RIGHTS) or from a listening
 * socket, and its settings. */
#ifndef FASTLOG_HANDOFF_H
#define FASTLOG_HANDOFF_H
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* What a processor gets to know of a new connection; ``handover.py`` has the table. */
struct fl_handover {
    uint16_t listener;
    uint8_t transport;
    uint8_t zero;
    int32_t principal;
    char host[INET6_ADDRSTRLEN];
    uint16_t port;
};
_Static_assert(sizeof(struct fl_handover) == 56, "as handover.py packs it");

/* The address of the other end as text; an address of IPv4 is written as one, whichever kind of socket it came through:
 * rules name hosts by it. */
static inline void fl_handover_peer(struct fl_handover *taken, const struct sockaddr_storage *there) {
    taken->host[0] = 0;
    taken->port = 0;
    if (there->ss_family == AF_INET) {
        const struct sockaddr_in *four = (const struct sockaddr_in *)there;
        inet_ntop(AF_INET, &four->sin_addr, taken->host, sizeof taken->host);
        taken->port = ntohs(four->sin_port);
    } else if (there->ss_family == AF_INET6) {
        const struct sockaddr_in6 *six = (const struct sockaddr_in6 *)there;
        if (IN6_IS_ADDR_V4MAPPED(&six->sin6_addr))
            inet_ntop(AF_INET, six->sin6_addr.s6_addr + 12, taken->host, sizeof taken->host);
        else
            inet_ntop(AF_INET6, &six->sin6_addr, taken->host, sizeof taken->host);
        taken->port = ntohs(six->sin6_port);
    }
}
/* As accept4, for a listening socket of the processor's own. */
static inline int fl_accept(int listening_fd, int listener, struct fl_handover *taken) {
    struct sockaddr_storage there;
    socklen_t size = sizeof there;
    int fd;
    memset(&there, 0, sizeof there);
    memset(taken, 0, sizeof *taken);
    fd = accept4(listening_fd, (struct sockaddr *)&there, &size, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd >= 0) {
        taken->listener = (uint16_t)listener;
        fl_handover_peer(taken, &there);
    }
    return fd;
}
/* One connection from the acceptor: >= 0, -1: none is there, -2: its descriptor or its record did not come whole. */
static inline int fl_receive_fd(int socket_fd, struct fl_handover *taken) {
    struct iovec piece = {taken, sizeof *taken};
    union { struct cmsghdr align; char room[CMSG_SPACE(sizeof(int))]; } control;
    struct msghdr message;
    ssize_t r;
    struct cmsghdr *c;
    int fd = -2;
    memset(&message, 0, sizeof message);
    message.msg_iov = &piece;
    message.msg_iovlen = 1;
    message.msg_control = control.room;
    message.msg_controllen = sizeof control.room;
    do r = recvmsg(socket_fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    while (r < 0 && errno == EINTR);
    if (r <= 0) return -1;
    for (c = CMSG_FIRSTHDR(&message); c; c = CMSG_NXTHDR(&message, c))
        if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS) memcpy(&fd, CMSG_DATA(c), sizeof fd);
    if (r != sizeof *taken && fd >= 0) {
        close(fd);
        return -2;
    }
    taken->host[sizeof taken->host - 1] = 0;
    return fd;
}
/* Between two sockets of one machine nothing is lost and nothing is gained by pacing: a congestion control that paces
 * (BBR, the default of some systems) costs up to half the speed there. Reno is always there and open to everybody. */
static inline void fl_tune_local(int fd) {
    struct sockaddr_storage here, there;
    socklen_t here_size = sizeof here, there_size = sizeof there;
    if (getsockname(fd, (struct sockaddr *)&here, &here_size) || getpeername(fd, (struct sockaddr *)&there, &there_size))
        return;
    if (here.ss_family != there.ss_family) return;
    if (here.ss_family == AF_INET
            ? ((struct sockaddr_in *)&here)->sin_addr.s_addr != ((struct sockaddr_in *)&there)->sin_addr.s_addr
            : here.ss_family != AF_INET6
                  || memcmp(&((struct sockaddr_in6 *)&here)->sin6_addr, &((struct sockaddr_in6 *)&there)->sin6_addr, 16))
        return;
    setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "reno", 4);
}
#endif
