/* amqp_client: an ordinary fast client of a RabbitMQ classic queue, with librabbitmq.
 *
 *   amqp_client produce --port P --queue Q [--messages N] [--size BYTES]
 *       declares the durable queue and publishes persistent messages without confirms, one by one as AMQP does it;
 *       ends when the queue itself counts them all
 *   amqp_client consume --port P --queue Q [--messages N]
 *       one consumer without acknowledgements; ends with the N-th message, and deletes the queue
 *
 * Prints one line of JSON. Every failure is one line on stderr and exit status 1; wrong usage is status 2.
 */
#define _GNU_SOURCE
#define PROGRAM "amqp_client"
#include <amqp.h>
#include <amqp_tcp_socket.h>

#include "../ceiling/net.h"

static struct {
    const char *queue;
    int64_t port, messages, size, timeout;
} opt = {.queue = "fastlog-peer", .port = 5672, .messages = 300000, .size = 200, .timeout = 120};

static amqp_connection_state_t connection;

static void check(const char *what) {
    amqp_rpc_reply_t reply = amqp_get_rpc_reply(connection);
    if (reply.reply_type == AMQP_RESPONSE_NORMAL) return;
    if (reply.reply_type == AMQP_RESPONSE_LIBRARY_EXCEPTION)
        fail("%s: %s", what, amqp_error_string2(reply.library_error));
    fail("%s: the broker refused it (method 0x%08X)", what, reply.reply.id);
}

static void open_channel(void) {
    connection = amqp_new_connection();
    amqp_socket_t *socket = connection ? amqp_tcp_socket_new(connection) : NULL;
    if (!socket) fail("out of memory");
    int status = amqp_socket_open(socket, "127.0.0.1", (int)opt.port);
    if (status) fail("cannot connect to port %lld: %s", (long long)opt.port, amqp_error_string2(status));
    amqp_rpc_reply_t reply = amqp_login(connection, "/", 0, 131072, 0, AMQP_SASL_METHOD_PLAIN, "guest", "guest");
    if (reply.reply_type != AMQP_RESPONSE_NORMAL) fail("the broker refused the login");
    amqp_channel_open(connection, 1);
    check("opening a channel");
}

/* Declares the queue, or with ``passive`` only asks; returns how many messages are in it. */
static int64_t declare(bool passive) {
    amqp_queue_declare_ok_t *answer =
        amqp_queue_declare(connection, 1, amqp_cstring_bytes(opt.queue), passive, 1, 0, 0, amqp_empty_table);
    check("declaring the queue");
    return answer->message_count;
}

static void result(double seconds) {
    printf("{\"messages\": %lld, \"seconds\": %.6f, \"rate\": %.1f}\n", (long long)opt.messages, seconds,
           (double)opt.messages / seconds);
}

static void produce(void) {
    uint8_t *payloads = allocate((size_t)opt.size + 4096);
    fill_random(payloads, (size_t)opt.size + 4096);
    amqp_basic_properties_t properties = {._flags = AMQP_BASIC_DELIVERY_MODE_FLAG, .delivery_mode = 2};
    amqp_bytes_t routing = amqp_cstring_bytes(opt.queue);
    if (declare(false)) fail("the queue is not empty");
    int64_t start = now_ns();
    for (int64_t i = 0; i < opt.messages; i++) {
        amqp_bytes_t body = {.len = (size_t)opt.size, .bytes = payloads + i % 4096};
        int status = amqp_basic_publish(connection, 1, amqp_empty_bytes, routing, 0, 0, &properties, body);
        if (status) fail("publishing: %s", amqp_error_string2(status));
    }
    for (int64_t deadline = now_ns() + opt.timeout * 1000000000LL; declare(true) != opt.messages;) {
        if (now_ns() > deadline) fail("after %lld s the queue does not have every message", (long long)opt.timeout);
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    result(since(start));
}

static void consume(void) {
    struct timeval limit = {.tv_sec = opt.timeout};
    int64_t start = now_ns();
    amqp_basic_consume(connection, 1, amqp_cstring_bytes(opt.queue), amqp_empty_bytes, 0, 1, 0, amqp_empty_table);
    check("consuming");
    for (int64_t i = 0; i < opt.messages; i++) {
        amqp_envelope_t envelope;
        amqp_maybe_release_buffers(connection);
        amqp_rpc_reply_t reply = amqp_consume_message(connection, &envelope, &limit, 0);
        if (reply.reply_type != AMQP_RESPONSE_NORMAL)
            fail("after %lld messages: %s", (long long)i, amqp_error_string2(reply.library_error));
        amqp_destroy_envelope(&envelope);
    }
    double seconds = since(start);
    amqp_queue_delete(connection, 1, amqp_cstring_bytes(opt.queue), 0, 0);
    check("deleting the queue");
    result(seconds);
}

static void usage(const char *problem) {
    fprintf(stderr,
            PROGRAM ": %s\nusage: amqp_client produce|consume --port P [--queue Q] [--messages N] [--size BYTES]"
                    " [--timeout SECONDS]\n",
            problem);
    exit(2);
}

int main(int argc, char **argv) {
    if (argc < 2 || (strcmp(argv[1], "produce") && strcmp(argv[1], "consume")))
        usage("the modes are produce and consume");
    for (int i = 2; i < argc; i += 2) {
        if (i + 1 == argc) usage("the last option has no value");
        if (!strcmp(argv[i], "--queue")) opt.queue = argv[i + 1];
        else if (!strcmp(argv[i], "--port")) number(argv[i], argv[i + 1], 1, 65535, &opt.port);
        else if (!strcmp(argv[i], "--messages")) number(argv[i], argv[i + 1], 1, 1LL << 40, &opt.messages);
        else if (!strcmp(argv[i], "--size")) number(argv[i], argv[i + 1], 1, 1 << 24, &opt.size);
        else if (!strcmp(argv[i], "--timeout")) number(argv[i], argv[i + 1], 1, 86400, &opt.timeout);
        else usage("an unknown option");
    }
    open_channel();
    if (!strcmp(argv[1], "produce")) produce();
    else consume();
    amqp_connection_close(connection, AMQP_REPLY_SUCCESS);
    amqp_destroy_connection(connection);
    return 0;
}
