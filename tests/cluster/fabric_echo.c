/*
 * fabric-echo: the fabric's speed without zenps on top, through the same calls: round trips of small messages, and the
 * rate of 1 MiB reads. One end serves; the other asks, prints a line of JSON, and tells the first to stop.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/config.h"
#include "common/net/net.h"

#define READ_BYTES (1u << 20)
#define READS_AT_ONCE 8u
#define GIVE_UP_NS (60 * ZPS_NS_PER_S)

struct options {
  char *address_file, *provider, *interface;
  uint64_t size, count, read_mb, spin_us;
  bool serve;
};

#define OPT(type_, field, ...) \
  { .type = (type_), .offset = offsetof(struct options, field), .flags = ZPS_OPT_NO_FILE | ZPS_OPT_NO_ENV, __VA_ARGS__ }
static const struct zps_opt opts[] = {
    OPT(ZPS_OPT_BOOL, serve, .name = "serve", .help = "answer, until the asking end has had enough"),
    OPT(ZPS_OPT_STRING, address_file, .name = "address-file", .arg = "FILE",
        .help = "where the serving end leaves its address for the asking one"),
    OPT(ZPS_OPT_STRING, provider, .name = "provider", .arg = "NAME", .def = "auto", .help = "fabric provider"),
    OPT(ZPS_OPT_STRING, interface, .name = "interface", .arg = "NAMES", .help = "network interfaces to use"),
    OPT(ZPS_OPT_UINT, size, .name = "size", .arg = "BYTES", .def = "64", .min = 1, .max = ZPS_NET_MSG_MAX - 512,
        .help = "bytes of a message, beside its head"),
    OPT(ZPS_OPT_UINT, count, .name = "count", .arg = "N", .def = "1000", .min = 1, .max = 10000000,
        .help = "round trips to measure"),
    OPT(ZPS_OPT_UINT, read_mb, .name = "read-mb", .arg = "MB", .def = "64", .min = 0, .max = 1048576,
        .help = "MiB to read afterwards"),
    OPT(ZPS_OPT_UINT, spin_us, .name = "spin-us", .arg = "N", .def = "0", .max = 10000,
        .help = "microseconds to poll before blocking"),
    {0},
};

static const struct zps_opt_table table = {
    .program = "fabric-echo",
    .summary = "measure round trips and reads of the fabric under zenps",
    .description = "Start it with --serve on one host and without on another, with the same --address-file.",
    .opts = opts,
    .config_size = sizeof(struct options),
};

/* The head of every message. The asking end gives its address in the first message; answers name the memory to read. */
struct head {
  uint64_t stop, addr, key;
  uint64_t own_len;
  uint8_t own[ZPS_NET_ADDR_MAX];
};

struct end {
  const struct options *options;
  struct zps_net *net;
  struct zps_net_peer *peer;
  struct zps_net_mem mem;
  struct head last;
  uint64_t n_received;
  bool stop, failed;
};

static int fail_text(const char *what, const char *why) {
  fprintf(stderr, "fabric-echo: %s: %s\n", what, why);
  return EXIT_FAILURE;
}

static void on_peer_error(void *ctx, struct zps_net_peer *peer, zps_err_t code, const char *text) {
  struct end *end = ctx;
  (void)peer;
  (void)code;
  end->failed = true;
  fail_text("the other end", text);
}

static void say(struct end *end, const struct head *head) {
  uint8_t message[ZPS_NET_MSG_MAX] = {0};
  memcpy(message, head, sizeof *head);
  if (end->peer && zps_net_send(end->peer, message, sizeof *head + end->options->size) != ZPS_OK) end->failed = true;
}

static void on_message(void *ctx, const void *data, size_t len) {
  struct end *end = ctx;
  if (len < sizeof end->last) return;
  memcpy(&end->last, data, sizeof end->last);
  end->n_received++;
  if (!end->options->serve) return;
  struct zps_error error;
  if (!end->peer && end->last.own_len <= sizeof end->last.own &&
      zps_net_peer_add(end->net, end->last.own, end->last.own_len, NULL, &end->peer, &error) != ZPS_OK) {
    fail_text("cannot answer", error.text);
    end->failed = true;
  }
  end->stop = end->last.stop != 0;
  const struct head answer = {.addr = end->mem.addr, .key = end->mem.key};
  if (!end->stop) say(end, &answer);
}

static void turn(struct end *end) {
  if (zps_net_progress(end->net) == 0) zps_net_wait(end->net, 100 * ZPS_NS_PER_MS);
}

static int serve(struct end *end) {
  const struct zps_net_info *info = zps_net_info(end->net);
  char fresh[4096];
  snprintf(fresh, sizeof fresh, "%s.new", end->options->address_file);
  FILE *file = fopen(fresh, "w");
  if (!file || fwrite(info->addr, 1, info->addr_len, file) != info->addr_len || fclose(file) != 0 ||
      rename(fresh, end->options->address_file) != 0)
    return fail_text("cannot write the address to", end->options->address_file);
  while (!end->stop && !end->failed) turn(end);
  return end->failed ? EXIT_FAILURE : EXIT_SUCCESS;
}

static int by_value(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static int echo(struct end *end, double *us) {
  const struct zps_net_info *info = zps_net_info(end->net);
  struct head head = {.own_len = info->addr_len};
  memcpy(head.own, info->addr, info->addr_len);
  for (uint64_t i = 0; i < end->options->count; i++) {
    const uint64_t start_ns = zps_clock_ns(), before = end->n_received;
    say(end, &head);
    while (end->n_received == before && !end->failed) {
      turn(end);
      if (zps_clock_ns() - start_ns > GIVE_UP_NS) return fail_text("no answer", "after 60 s");
    }
    if (end->failed) return EXIT_FAILURE;
    us[i] = (double)(zps_clock_ns() - start_ns) / 1e3;
  }
  qsort(us, end->options->count, sizeof *us, by_value);
  return EXIT_SUCCESS;
}

static void read_done(struct zps_net_read *read, zps_err_t code) {
  *(int *)read->ctx = code == ZPS_OK ? 0 : -1;
}

/* Keeps eight reads under way; bytes per second. */
static double read_rate(struct end *end) {
  struct zps_net_read reads[READS_AT_ONCE];
  int pending[READS_AT_ONCE] = {0};
  const uint64_t total = end->options->read_mb, start_ns = zps_clock_ns();
  uint64_t started = 0, flying = 0;
  while ((started < total || flying > 0) && !end->failed) {
    flying = 0;
    for (unsigned i = 0; i < READS_AT_ONCE; i++) {
      if (pending[i] < 0) end->failed = true;
      if (pending[i] == 0 && started < total) {
        reads[i] = (struct zps_net_read){.local = (uint8_t *)end->mem.base + i * READ_BYTES,
                                         .mem = &end->mem,
                                         .len = READ_BYTES,
                                         .addr = end->last.addr + i * READ_BYTES,
                                         .key = end->last.key,
                                         .done = read_done,
                                         .ctx = &pending[i]};
        pending[i] = 1;
        started++;
        if (zps_net_read(end->peer, &reads[i]) != ZPS_OK) end->failed = true;
      }
      flying += pending[i] == 1;
    }
    if (flying > 0) turn(end);
  }
  return (double)(total * READ_BYTES) / ((double)(zps_clock_ns() - start_ns) / 1e9);
}

static int ask(struct end *end) {
  uint8_t addr[ZPS_NET_ADDR_MAX];
  FILE *file = fopen(end->options->address_file, "r");
  const size_t len = file ? fread(addr, 1, sizeof addr, file) : 0;
  if (file) fclose(file);
  struct zps_error error;
  if (len == 0) return fail_text("cannot read an address from", end->options->address_file);
  if (zps_net_peer_add(end->net, addr, len, NULL, &end->peer, &error) != ZPS_OK)
    return fail_text("cannot reach the serving end", error.text);
  const uint64_t count = end->options->count;
  double *us = calloc(count, sizeof *us);
  if (!us) return fail_text("cannot measure", "out of memory");
  int failed = echo(end, us);
  double rate = 0;
  if (!failed && end->options->read_mb > 0) rate = read_rate(end);
  failed |= end->failed;
  if (!failed) {
    printf("{\"provider\":\"%s\",\"size\":%llu,\"rtt_us\":%.2f,\"rtt_p99_us\":%.2f,\"read_mb_s\":%.3f}\n",
           zps_net_info(end->net)->provider, (unsigned long long)end->options->size, us[count / 2],
           us[count * 99 / 100], rate / 1e6);
    const struct head stop = {.stop = 1};
    say(end, &stop);
    const uint64_t until_ns = zps_clock_ns() + 100 * ZPS_NS_PER_MS; /* this message has no answer */
    while (zps_clock_ns() < until_ns) turn(end);
  }
  free(us);
  return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}

static int run(const struct options *options) {
  struct end end = {.options = options};
  const struct zps_net_config config = {.provider = options->provider,
                                        .interface = options->interface,
                                        .max_msg = ZPS_NET_MSG_MAX,
                                        .n_recv = 16,
                                        .spin_us = (unsigned)options->spin_us,
                                        .connect_timeout_ms = 10000};
  const struct zps_net_handler handler = {.ctx = &end, .on_message = on_message, .on_peer_error = on_peer_error};
  struct zps_error error;
  if (zps_net_open(&config, &handler, &end.net, &error) != ZPS_OK) return fail_text("no fabric", error.text);
  const size_t len = (size_t)READS_AT_ONCE * READ_BYTES;
  void *buffer = calloc(1, len);
  int failed = EXIT_FAILURE;
  if (!buffer) {
    fail_text("no buffer", "out of memory");
  } else if (zps_net_mem_register(end.net, buffer, len, &end.mem, &error) != ZPS_OK) {
    fail_text("no buffer", error.text);
  } else {
    failed = options->serve ? serve(&end) : ask(&end);
  }
  zps_net_close(end.net);
  free(buffer);
  return failed;
}

int main(int argc, char **argv) {
  struct options options;
  struct zps_config_rest rest;
  struct zps_error error;
  if (zps_config_load(&table, argc, argv, NULL, &options, &rest, &error) != ZPS_OK) {
    fprintf(stderr, "fabric-echo: %s\n", error.text);
    return 2;
  }
  int failed = EXIT_SUCCESS;
  if (!rest.exit_now) failed = options.address_file ? run(&options) : fail_text("--address-file", "is missing");
  zps_config_fini(&table, &options);
  return failed;
}
