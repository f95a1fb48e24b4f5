/* Taking a connection in: its descriptor over a unix socket (SCM_RIGHTS), and its settings. */
#ifndef FASTLOG_HANDOFF_H
#define FASTLOG_HANDOFF_H
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>

static inline int fl_receive_fd(int socket_fd) {
    char byte;
    struct iovec piece = {&byte, 1};
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
/* The address of the other end as text, at most 46 bytes with the 0 behind it; empty where it is none of IP. An address of
 * IPv4 is written as one, whichever kind of socket it came through: rules name hosts by it. */
static inline void fl_peer_host(int fd, char *host) {
    struct sockaddr_storage there;
    socklen_t size = sizeof there;
    host[0] = 0;
    if (getpeername(fd, (struct sockaddr *)&there, &size)) return;
    if (there.ss_family == AF_INET) {
        inet_ntop(AF_INET, &((struct sockaddr_in *)&there)->sin_addr, host, INET6_ADDRSTRLEN);
    } else if (there.ss_family == AF_INET6) {
        struct in6_addr *address = &((struct sockaddr_in6 *)&there)->sin6_addr;
        if (IN6_IS_ADDR_V4MAPPED(address)) inet_ntop(AF_INET, address->s6_addr + 12, host, INET6_ADDRSTRLEN);
        else inet_ntop(AF_INET6, address, host, INET6_ADDRSTRLEN);
    }
}
#endif
