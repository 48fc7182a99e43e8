#include "tests/integration/stranger_read.h"

#include <unistd.h>

static void on_read(struct zps_net_read *read, zps_err_t code) {
  struct stranger_reader *reader = read->ctx;
  reader->code = code;
  reader->is_done = true;
}

bool stranger_reader_open(struct stranger_reader *reader) {
  struct zps_error error = {.text = ""};
  *reader = (struct stranger_reader){.is_done = true};
  if (!stranger_open(&reader->self)) return false;
  if (zps_net_mem_register(reader->self.net, reader->buffer, STRANGER_READ_BYTES, &reader->mem, &error) == ZPS_OK)
    return true;
  stranger_give_up("no memory to read to", error.text);
  zps_net_close(reader->self.net);
  return false;
}

void stranger_reader_close(struct stranger_reader *reader) {
  if (reader->self.peer) zps_net_peer_evict(reader->self.peer);
  zps_net_mem_release(reader->self.net, &reader->mem);
  zps_net_close(reader->self.net);
}

bool stranger_read_begin(struct stranger_reader *reader, const void *to, size_t to_len, uint64_t address,
                         uint64_t key) {
  reader->read = (struct zps_net_read){.local = reader->buffer,
                                       .mem = &reader->mem,
                                       .len = STRANGER_READ_BYTES,
                                       .addr = address,
                                       .key = key,
                                       .done = on_read,
                                       .ctx = reader};
  reader->is_done = false;
  reader->until_ns = zps_clock_ns() + STRANGER_PATIENCE_NS;
  if (!stranger_connect(&reader->self, to, to_len)) return false;
  reader->is_reading = zps_net_read(reader->self.peer, &reader->read) == ZPS_OK;
  return reader->is_reading;
}

void stranger_read_must_end(const struct stranger_reader *reader) {
  if (reader->is_done || zps_clock_ns() < reader->until_ns) return;
  stranger_give_up("a read", "does not end");
  _exit(2); /* the fabric has its memory */
}

zps_err_t stranger_read_now(struct stranger_reader *reader, const void *to, size_t to_len, uint64_t address,
                            uint64_t key, struct zps_net *other) {
  if (!stranger_read_begin(reader, to, to_len, address, key)) return ZPS_ERR_INVALID;
  for (; !reader->is_done; stranger_read_must_end(reader)) {
    if (other) zps_net_progress(other);
    stranger_turn(&reader->self);
  }
  reader->is_reading = false;
  return reader->code;
}
