/* Receiving one descriptor over a unix socket (SCM_RIGHTS). */
#ifndef FASTLOG_HANDOFF_H
#define FASTLOG_HANDOFF_H
#include <errno.h>
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
#endif
