/* What the C programs of the measurements share: failing with one line, time, blocking sockets, options.
 *
 * A program that includes this defines PROGRAM (its name) before, and usage() somewhere. */
#ifndef PERF_CEILING_NET_H
#define PERF_CEILING_NET_H

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

/* Ends the program with status 2 and a line that names the problem. */
__attribute__((noreturn)) static void usage(const char *problem);

__attribute__((noreturn, format(printf, 1, 2))) static void fail(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fputs(PROGRAM ": ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    exit(1);
}

static inline void *allocate(size_t bytes) {
    void *p = malloc(bytes ? bytes : 1);
    if (!p) fail("out of memory (%zu bytes)", bytes);
    return p;
}

static inline int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static inline double since(int64_t start) { return (double)(now_ns() - start) / 1e9; }

static inline void choose_congestion(int fd, const char *name) {
    if (*name && setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, (socklen_t)strlen(name)))
        fail("congestion control %s: %s", name, strerror(errno));
}

/* Connects; every later call that waits longer than ``timeout`` seconds for the other side fails. */
static inline int dial(const char *host, const char *port, int64_t timeout, const char *congestion) {
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *list = NULL;
    int status = getaddrinfo(host, port, &hints, &list), fd = -1, on = 1;
    if (status) fail("host %s port %s: %s", host, port, gai_strerror(status));
    for (struct addrinfo *a = list; a && fd < 0; a = a->ai_next) {
        fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol);
        if (fd >= 0 && connect(fd, a->ai_addr, a->ai_addrlen)) {
            close(fd);
            fd = -1;
        }
    }
    freeaddrinfo(list);
    if (fd < 0) fail("cannot connect to %s:%s: %s", host, port, strerror(errno));
    struct timeval limit = {.tv_sec = timeout};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    choose_congestion(fd, congestion);
    return fd;
}

static inline void send_all(int fd, const uint8_t *p, size_t n) {
    while (n) {
        ssize_t sent = send(fd, p, n, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR) continue;
        if (sent < 0) fail("sending: %s", errno == EAGAIN ? "timed out" : strerror(errno));
        p += sent;
        n -= (size_t)sent;
    }
}

/* Reads what is there, at least one byte; 0 when the other side has closed. */
static inline size_t receive_some(int fd, uint8_t *p, size_t n) {
    for (;;) {
        ssize_t got = recv(fd, p, n, 0);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0 && errno != ECONNRESET) fail("receiving: %s", errno == EAGAIN ? "timed out" : strerror(errno));
        return got < 0 ? 0 : (size_t)got;
    }
}

static inline bool receive_all(int fd, uint8_t *p, size_t n) {
    while (n) {
        size_t got = receive_some(fd, p, n);
        if (!got) return false;
        p += got;
        n -= got;
    }
    return true;
}

/* An option's number, within its range; else usage(). */
static inline void number(const char *name, const char *text, int64_t low, int64_t high, int64_t *value) {
    char *end, problem[200];
    errno = 0;
    *value = strtoll(text, &end, 10);
    if (!errno && *text && !*end && *value >= low && *value <= high) return;
    snprintf(problem, sizeof problem, "%s takes a number from %lld to %lld", name, (long long)low, (long long)high);
    usage(problem);
}

/* Letters and signs, 64 of them: incompressible enough, and readable in a dump. Seeded: every run sends the same. */
static inline void fill_random(uint8_t *p, size_t n) {
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz ABCDEFGHIJKLMNOPQRSTUVWXYZ-0123456789";
    static uint64_t state = 0x9E3779B97F4A7C15u;
    for (size_t i = 0; i < n; i++) {
        state ^= state << 13, state ^= state >> 7, state ^= state << 17;
        p[i] = (uint8_t)letters[state >> 20 & 63];
    }
}

#endif
