/*
 * A rank sends arbitrary bytes to an endpoint of the encrypted fabric, inside TLS. The calls of TLS are empty here.
 * With an odd first byte a right HELLO goes ahead of the others, and the endpoint has asked for two reads by then.
 * If bit 1 of it is set, too, the bytes go over a further connection, without reads of the endpoint.
 * A plain model reads the same bytes: messages and reads must come out as it says, and the connection ends where
 * it says. Answers to the rank's own reads have the bytes of the memory, or refuse.
 */
#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/log.h"
#include "common/net/tls/impl.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/must.h"
#include "tests/support/plain_tls.h"

enum { MAX_MSG = 512, MEMORY = 4096, READ_LEN = 100, N_READS = 2, ANSWERS_MAX = 1 << 20, INPUT_MAX = 16384 };
static const uint8_t rank_name[TLSNET_NAME_BYTES] = "the fuzzer";

/* ---- the endpoint ---- */

struct outcome {
  size_t n_bytes; /* of all messages, one after the other */
  unsigned n_messages, n_done;
  zps_err_t codes[N_READS];
  uint8_t bytes[INPUT_MAX], read[N_READS][READ_LEN];
};

static struct zps_net *net;
static struct zps_net_mem memory, landing;
static uint8_t lent[MEMORY], landed[N_READS * READ_LEN];
static struct outcome got;

static void on_message(void *ctx, const void *data, size_t len) {
  (void)ctx;
  must(len <= MAX_MSG && got.n_bytes + len <= sizeof got.bytes);
  if (len > 0) memcpy(got.bytes + got.n_bytes, data, len);
  got.n_bytes += len;
  got.n_messages++;
}

static void on_peer_error(void *ctx, struct zps_net_peer *peer, zps_err_t code, const char *text) {
  (void)ctx, (void)peer;
  must(code != ZPS_OK && text[0]);
}

static void on_done(struct zps_net_read *read, zps_err_t code) {
  got.codes[(size_t)((uint8_t *)read->local - landed) / READ_LEN] = code;
  got.n_done++;
}

static void open_once(void) {
  static uint8_t identity; /* never looked at */
  const struct zps_net_handler handler = {.on_message = on_message, .on_peer_error = on_peer_error};
  const struct zps_net_config config = {.provider = "tls",
                                        .interface = "lo",
                                        .max_msg = MAX_MSG,
                                        .n_recv = 4,
                                        .tls = (struct zps_tls *)(void *)&identity};
  if (net) return;
  must(zps_net_tls_open(&config, &handler, &net, NULL) == ZPS_OK);
  for (size_t i = 0; i < MEMORY; i++) lent[i] = (uint8_t)(i * 7);
  must(zps_net_mem_register(net, lent, sizeof lent, &memory, NULL) == ZPS_OK);
  must(zps_net_mem_register(net, landed, sizeof landed, &landing, NULL) == ZPS_OK);
}

static struct zps_net_peer *add_rank(struct zps_net_read *reads) {
  struct tlsnet_address address = {.at.sin6_family = 0, .family = AF_INET};
  struct zps_net_peer *peer;
  memcpy(address.name, rank_name, sizeof rank_name);
  must(zps_net_peer_add(net, &address, sizeof address, NULL, &peer, NULL) == ZPS_OK);
  for (unsigned i = 0; i < N_READS; i++) {
    reads[i] = (struct zps_net_read){.local = landed + i * READ_LEN, .mem = &landing, .len = READ_LEN, .done = on_done};
    must(zps_net_read(peer, &reads[i]) == ZPS_OK);
  }
  return peer;
}

/* ---- the rank ---- */

static int dial(void) {
  const struct linger at_once = {.l_onoff = 1}; /* leaves no port waiting */
  const struct tlsnet *const endpoint = tlsnet_of(net);
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  must(fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once) == 0);
  must(connect(fd, (const struct sockaddr *)&endpoint->address.at, sizeof(struct sockaddr_in)) == 0);
  return fd;
}

static void put_hello(int fd, uint32_t number) {
  uint8_t hello[TLSNET_HEAD_BYTES + TLSNET_HELLO_BYTES];
  struct tlsnet_hello content = {.slot = 1, .number = number};
  memcpy(content.name, rank_name, sizeof content.name);
  memcpy(content.to, tlsnet_of(net)->address.name, sizeof content.to);
  zps_tlsnet_head_write(TLSNET_HELLO, TLSNET_HELLO_BYTES, hello);
  zps_tlsnet_hello_write(&content, hello + TLSNET_HEAD_BYTES);
  must(send(fd, hello, sizeof hello, MSG_NOSIGNAL) == sizeof hello);
}

static void say_hello(int fd) {
  uint8_t asked[N_READS * (TLSNET_HEAD_BYTES + TLSNET_READ_BYTES)];
  put_hello(fd, 0);
  for (size_t n = 0; n < sizeof asked;) {
    zps_net_progress(net);
    const ssize_t more = recv(fd, asked + n, sizeof asked - n, MSG_DONTWAIT);
    must(more > 0 || (more < 0 && errno == EAGAIN));
    n += more > 0 ? (size_t)more : 0;
  }
}

static int dial_further(void) {
  const int fd = dial();
  put_hello(fd, 1);
  while (LIST_EMPTY(&LIST_FIRST(&tlsnet_of(net)->peers)->conn->further)) zps_net_progress(net);
  return fd;
}

/* What the endpoint says; returns whether the connection has ended. */
static bool hear(int fd, uint8_t *bytes, size_t *len_p) {
  for (unsigned n_idle = 0; n_idle < 3;) {
    zps_net_progress(net);
    const ssize_t n = recv(fd, bytes + *len_p, ANSWERS_MAX - *len_p, MSG_DONTWAIT);
    if (n == 0 || (n < 0 && errno != EAGAIN)) return true;
    n_idle = n < 0 ? n_idle + 1 : 0;
    *len_p += n > 0 ? (size_t)n : 0;
  }
  return false;
}

/* ---- the model ---- */

struct model {
  struct outcome outcome;
  unsigned n_answered, n_reads;
  size_t n_landed;
  bool is_further;
  bool breaks;                        /* the connection ends */
  uint32_t offers[TLSNET_OFFERS_MAX]; /* bytes to come of the incomplete ones, the oldest at the beginning */
  unsigned n_offers;
};

static bool model_data(struct model *model, const uint8_t *body, size_t has, uint32_t len) {
  if (model->n_answered == N_READS || len == 0 || len > READ_LEN - model->n_landed) return false;
  memcpy(model->outcome.read[model->n_answered] + model->n_landed, body, has);
  model->n_landed += has;
  if (model->n_landed < READ_LEN) return true;
  model->outcome.codes[model->n_answered++] = ZPS_OK;
  model->n_landed = 0;
  return true;
}

static bool model_offer(struct model *model, const uint8_t *body) {
  struct tlsnet_offer offer;
  if (zps_tlsnet_offer_read(body, &offer, NULL) != ZPS_OK) return false;
  if (offer.ahead == 0) return true;
  if (model->n_offers == TLSNET_OFFERS_MAX) return false;
  model->offers[model->n_offers++] = offer.ahead;
  return true;
}

static bool model_ahead(struct model *model, uint32_t len) {
  if (model->n_offers == 0 || len > model->offers[0]) return false;
  model->offers[0] -= len;
  if (len > 0 && model->offers[0] > 0) return true;
  memmove(model->offers, model->offers + 1, --model->n_offers * sizeof model->offers[0]);
  return true;
}

/* One whole frame, or the beginning of the last one. */
static bool model_frame(struct model *model, uint32_t type, const uint8_t *body, size_t has, uint32_t len) {
  const bool is_whole = has == len;
  if (model->is_further && type != TLSNET_READ) return false;
  switch (type) {
    case TLSNET_MESSAGE:
      if (len > MAX_MSG) return false;
      if (!is_whole) return true;
      memcpy(model->outcome.bytes + model->outcome.n_bytes, body, len);
      model->outcome.n_bytes += len;
      model->outcome.n_messages++;
      return true;
    case TLSNET_READ:
      model->n_reads += is_whole;
      return len == TLSNET_READ_BYTES;
    case TLSNET_DATA:
      return model_data(model, body, has, len);
    case TLSNET_REFUSED:
      if (model->n_answered == N_READS || len != 0) return false;
      model->outcome.codes[model->n_answered++] = ZPS_ERR_FABRIC;
      model->n_landed = 0;
      return true;
    case TLSNET_OFFER:
      return len == TLSNET_OFFER_BYTES && (!is_whole || model_offer(model, body));
    case TLSNET_AHEAD:
      return model_ahead(model, len);
    case TLSNET_DECLINE:
      return len == 0;
    default:
      return false;
  }
}

static void model_run(struct model *model, const uint8_t *bytes, size_t size) {
  for (size_t at = 0; !model->breaks && size - at >= TLSNET_HEAD_BYTES;) {
    const uint32_t type = (uint32_t)bytes[at] | (uint32_t)bytes[at + 1] << 8 | (uint32_t)bytes[at + 2] << 16 |
                          (uint32_t)bytes[at + 3] << 24;
    const uint32_t len = (uint32_t)bytes[at + 4] | (uint32_t)bytes[at + 5] << 8 | (uint32_t)bytes[at + 6] << 16 |
                         (uint32_t)bytes[at + 7] << 24;
    at += TLSNET_HEAD_BYTES;
    const size_t has = len < size - at ? len : size - at;
    model->breaks = !model_frame(model, type, bytes + at, has, len);
    at += has;
  }
}

/* ---- what is compared ---- */

static void check_answers(const uint8_t *bytes, size_t len) {
  for (size_t at = 0; at + TLSNET_HEAD_BYTES <= len;) {
    struct tlsnet_head head;
    must(zps_tlsnet_head_read(bytes + at, MAX_MSG, &head, NULL) == ZPS_OK);
    must(head.type == TLSNET_DATA || head.type == TLSNET_REFUSED);
    at += TLSNET_HEAD_BYTES;
    for (size_t i = 1; i < head.len && at + i < len; i++) must((uint8_t)(bytes[at + i] - bytes[at + i - 1]) == 7);
    at += head.len;
  }
}

/* More reads than an end may ask for break the protocol, or not, as the endpoint was quick. */
static void check(const struct model *model, bool has_ended) {
  if (model->n_reads > TLSNET_READS_MAX) return;
  must(has_ended == model->breaks);
  must(got.n_messages == model->outcome.n_messages && got.n_bytes == model->outcome.n_bytes);
  must(memcmp(got.bytes, model->outcome.bytes, got.n_bytes) == 0);
  for (unsigned i = 0; i < model->n_answered; i++) {
    must(got.codes[i] == model->outcome.codes[i]);
    if (got.codes[i] == ZPS_OK) must(memcmp(landed + i * READ_LEN, model->outcome.read[i], READ_LEN) == 0);
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static uint8_t answers[ANSWERS_MAX];
  static struct model model;
  struct zps_net_read reads[N_READS];
  size_t n_answers = 0;
  if (size == 0 || size > INPUT_MAX) return 0;
  const bool is_named = data[0] & 1, is_further = is_named && data[0] & 2;
  zps_log_set_level(ZPS_LOG_ERROR);
  open_once();
  memset(&got, 0, sizeof got);
  memset(&model, 0, sizeof model);
  struct zps_net_peer *const peer = add_rank(reads);
  model.is_further = is_further;
  const int first = dial();
  if (is_named) say_hello(first);
  const int fd = is_further ? dial_further() : first;
  must(size == 1 || send(fd, data + 1, size - 1, MSG_NOSIGNAL) == (ssize_t)(size - 1));
  const bool has_ended = hear(fd, answers, &n_answers);
  if (is_named) {
    model_run(&model, data + 1, size - 1);
    check_answers(answers, n_answers);
    check(&model, has_ended);
  } else {
    must(got.n_messages == 0 && got.n_done == 0 && n_answers == 0); /* nobody guesses the endpoint's name */
  }
  if (is_further) must(tlsnet_peer_of(peer)->conn && got.n_messages == 0);
  if (is_further) close(first);
  close(fd);
  zps_net_peer_evict(peer);
  while (!LIST_EMPTY(&tlsnet_of(net)->conns)) zps_net_progress(net);
  zps_net_progress(net);
  must(got.n_done == N_READS);
  return 0;
}
