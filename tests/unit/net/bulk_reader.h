/* One reader and several sources over the in-process fabric, driven step by step; transfers that count their calls. */
#ifndef ZPS_TESTS_NET_BULK_READER_H
#define ZPS_TESTS_NET_BULK_READER_H

#include "common/base/rng.h"
#include "common/net/bulk.h"
#include "tests/support/net_pair.h"

enum { SOURCES = 3, BYTES = 1 << 16, PIECE = 1000 };

struct source {
  struct end end;
  struct zps_net_peer *peer; /* the reader's handle */
  struct zps_bulk_peer *bulk_peer;
  uint8_t bytes[BYTES];
  struct zps_net_mem mem;
};

struct reader {
  struct end end;
  struct zps_bulk *bulk;
  struct source sources[SOURCES];
  uint8_t bytes[SOURCES][BYTES];
  struct zps_net_mem mem;
};

struct transfer {
  struct zps_bulk_read read;
  unsigned n_done, n_released, order;
  zps_err_t code;
  struct transfer *then; /* started by done() */
  struct zps_bulk_peer *then_from;
};

static unsigned n_finished; /* orders the transfers of a test */

static inline void on_done(struct zps_bulk_read *read, zps_err_t code) {
  struct transfer *transfer = read->ctx;
  assert_int_equal(transfer->n_done, 0);
  assert_int_equal(transfer->n_released, 0);
  transfer->n_done++;
  transfer->code = code;
  transfer->order = n_finished++;
  if (transfer->then) zps_bulk_start(transfer->then_from, &transfer->then->read);
}

static inline void on_release(struct zps_bulk_read *read) {
  struct transfer *transfer = read->ctx;
  assert_int_equal(transfer->n_done, 1);
  assert_int_equal(transfer->code, ZPS_ERR_PEER_LOST);
  transfer->n_released++;
}

static inline void reader_open(struct reader *reader, const char *provider, const char *fault,
                               const struct zps_bulk_config *config) {
  end_open(&reader->end, provider, fault, 4);
  memset(reader->bytes, 0, sizeof reader->bytes);
  reader->mem = end_register(&reader->end, reader->bytes, sizeof reader->bytes);
  assert_int_equal(zps_bulk_create(reader->end.net, config, &reader->bulk), ZPS_OK);
  n_finished = 0;
  struct zps_rng rng = {.state = 1};
  for (int i = 0; i < SOURCES; i++) {
    struct source *source = &reader->sources[i];
    end_open(&source->end, "loop", NULL, 4);
    for (unsigned j = 0; j < BYTES; j++) source->bytes[j] = (uint8_t)zps_rng_u64(&rng);
    source->mem = end_register(&source->end, source->bytes, BYTES);
    end_connect(&reader->end, &source->end);
    source->peer = reader->end.peer;
    assert_int_equal(zps_bulk_peer_add(reader->bulk, source->peer, &source->bulk_peer), ZPS_OK);
  }
}

static inline void reader_close(struct reader *reader) {
  zps_net_close(reader->end.net);
  zps_bulk_destroy(reader->bulk);
  for (int i = 0; i < SOURCES; i++) zps_net_close(reader->sources[i].end.net);
}

static inline void start(struct reader *reader, int source, struct transfer *transfer, size_t offset, size_t len) {
  struct source *from = &reader->sources[source];
  *transfer = (struct transfer){.read = {.local = reader->bytes[source] + offset,
                                         .mem = &reader->mem,
                                         .len = len,
                                         .addr = from->mem.addr + offset,
                                         .key = from->mem.key,
                                         .done = on_done,
                                         .release = on_release,
                                         .ctx = transfer}};
  zps_bulk_start(from->bulk_peer, &transfer->read);
}

static inline void evict(struct reader *reader, int source) {
  zps_net_peer_evict(reader->sources[source].peer);
  zps_bulk_peer_remove(reader->sources[source].bulk_peer);
}

static inline void turn(struct reader *reader) {
  if (zps_net_progress(reader->end.net) + zps_bulk_progress(reader->bulk) == 0)
    zps_net_wait(reader->end.net, ZPS_NS_PER_MS / 10);
}

static inline void run_until(struct reader *reader, const unsigned *counter, unsigned value) {
  struct patience patience = {0};
  while (*counter < value) {
    if (patience_is_over_at(&patience, *counter)) fail_msg("still %u of %u", *counter, value);
    turn(reader);
  }
}

#endif
