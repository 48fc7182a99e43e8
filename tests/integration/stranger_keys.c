/* Reads by guessed keys. A wrong one costs the connection, so that many are tried at once. */
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tests/integration/stranger.h"

enum { READ_BYTES = 64, AT_ONCE = 32 };

struct guesser {
  struct stranger *all; /* who counts */
  struct stranger self;
  struct zps_net_mem mem;
  struct zps_net_read read;
  bool is_reading, is_done;
  zps_err_t code;
  uint64_t until_ns;
  uint8_t buffer[READ_BYTES];
};

static void on_read(struct zps_net_read *read, zps_err_t code) {
  struct guesser *guesser = read->ctx;
  guesser->code = code;
  guesser->is_done = true;
}

static bool guesser_open(struct guesser *guesser, struct stranger *all) {
  struct zps_error error = {.text = ""};
  *guesser = (struct guesser){.all = all, .self = {.to = all->to}};
  if (!stranger_open(&guesser->self)) return false;
  if (zps_net_mem_register(guesser->self.net, guesser->buffer, READ_BYTES, &guesser->mem, &error) == ZPS_OK)
    return true;
  stranger_give_up("no memory to read to", error.text);
  return false;
}

static void guesser_close(struct guesser *guesser) {
  if (guesser->self.peer) zps_net_peer_evict(guesser->self.peer);
  zps_net_mem_release(guesser->self.net, &guesser->mem);
  zps_net_close(guesser->self.net);
}

static bool guess(struct guesser *guesser, const void *to, size_t to_len, uint64_t addr, uint64_t key) {
  guesser->read = (struct zps_net_read){.local = guesser->buffer,
                                        .mem = &guesser->mem,
                                        .len = READ_BYTES,
                                        .addr = addr,
                                        .key = key,
                                        .done = on_read,
                                        .ctx = guesser};
  guesser->is_done = false;
  guesser->until_ns = zps_clock_ns() + STRANGER_PATIENCE_NS;
  if (!stranger_connect(&guesser->self, to, to_len)) return false;
  guesser->is_reading = zps_net_read(guesser->self.peer, &guesser->read) == ZPS_OK;
  return guesser->is_reading;
}

static void must_end(const struct guesser *guesser) {
  if (guesser->is_done || zps_clock_ns() < guesser->until_ns) return;
  stranger_give_up("a read", "does not end");
  _exit(2); /* the fabric has its memory */
}

static zps_err_t read_here(struct guesser *guesser, const struct zps_net_info *to, uint64_t addr, uint64_t key,
                           struct zps_net *other) {
  if (!guess(guesser, to->addr, to->addr_len, addr, key)) return ZPS_ERR_INVALID;
  for (; !guesser->is_done; must_end(guesser)) {
    zps_net_progress(other);
    stranger_turn(&guesser->self);
  }
  guesser->is_reading = false;
  return guesser->code;
}

/* Reads do work here, by the right key and by no other: else that none succeeds would say nothing. */
static bool reads_work(struct stranger *all) {
  static uint8_t memory[READ_BYTES] = "what only the owner of the key reads";
  struct guesser guesser;
  struct stranger other = {.to = all->to};
  struct zps_error error = {.text = ""};
  struct zps_net_mem theirs;
  if (!guesser_open(&guesser, all) || !stranger_open(&other)) return false;
  const struct zps_net_info *info = zps_net_info(other.net);
  bool work = zps_net_mem_register(other.net, memory, sizeof memory, &theirs, &error) == ZPS_OK;
  if (work) {
    work = read_here(&guesser, info, theirs.addr, theirs.key, other.net) == ZPS_OK &&
           memcmp(guesser.buffer, memory, sizeof memory) == 0 &&
           read_here(&guesser, info, theirs.addr, theirs.key + 1, other.net) != ZPS_OK;
    zps_net_mem_release(other.net, &theirs);
  }
  guesser_close(&guesser);
  zps_net_close(other.net);
  return work;
}

/* Small keys, neighbours of one's own, and random ones; at the beginning of memory, further on, and where one has it.
 */
static bool next_guess(struct guesser *guesser, uint64_t i, uint64_t n) {
  const uint64_t random = zps_rng_u64(&guesser->all->rng);
  const uint64_t key[] = {i / 4, guesser->mem.key + i / 4 - n / 8, random, random & UINT32_MAX};
  const uint64_t addr[] = {0, i / 4 * READ_BYTES, guesser->mem.addr, (uintptr_t)guesser->buffer & ~(uintptr_t)4095};
  return guess(guesser, &guesser->all->to, sizeof guesser->all->to, addr[i / 16 % 4], key[i % 4]);
}

static void count(struct guesser *guesser) {
  guesser->is_reading = false;
  guesser->all->n_tried++;
  if (guesser->code != ZPS_OK) return;
  guesser->all->n_done++;
  printf("read: key 0x%016llx, address 0x%llx\n", (unsigned long long)guesser->read.key,
         (unsigned long long)guesser->read.addr);
}

int stranger_keys(struct stranger *all, unsigned long n) {
  static struct guesser guessers[AT_ONCE];
  unsigned long n_begun = 0, n_flying = 0;
  if (!reads_work(all)) return stranger_give_up("reads", "do not work between two ends of its own");
  for (unsigned g = 0; g < AT_ONCE; g++)
    if (!guesser_open(&guessers[g], all)) return 2;
  while (n_begun < n || n_flying > 0) {
    unsigned done = 0;
    for (unsigned g = 0; g < AT_ONCE; g++) {
      struct guesser *const guesser = &guessers[g];
      done += zps_net_progress(guesser->self.net) > 0;
      if (guesser->is_reading && guesser->is_done) {
        count(guesser);
        n_flying--;
      }
      if (guesser->is_reading) {
        must_end(guesser);
      } else if (n_begun < n) {
        if (!next_guess(guesser, n_begun, n)) return stranger_give_up("a read", "cannot be begun");
        n_begun++, n_flying++, done++;
      }
    }
    if (done == 0) nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
  }
  for (unsigned g = 0; g < AT_ONCE; g++) {
    all->n_lost += guessers[g].self.n_lost + guessers[g].self.is_lost;
    guesser_close(&guessers[g]);
  }
  return all->n_done > 0 ? 1 : 0;
}
