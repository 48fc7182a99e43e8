/* Reads by guessed keys. A wrong one costs the connection, so that many are tried at once. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "tests/integration/stranger_read.h"

enum { AT_ONCE = 32 };

static zps_err_t read_here(struct stranger_reader *reader, uint64_t address, uint64_t key, struct zps_net *other) {
  const struct zps_net_info *const to = zps_net_info(other);
  return stranger_read_now(reader, to->addr, to->addr_len, address, key, other);
}

/* Reads do work here, by the right key and by no other: else that none succeeds would say nothing. */
static bool reads_work(void) {
  static uint8_t memory[STRANGER_READ_BYTES] = "what only the owner of the key reads";
  struct stranger_reader reader;
  struct stranger other = {0};
  struct zps_error error = {.text = ""};
  struct zps_net_mem theirs;
  if (!stranger_reader_open(&reader) || !stranger_open(&other)) return false;
  bool work = zps_net_mem_register(other.net, memory, sizeof memory, &theirs, &error) == ZPS_OK;
  if (work) {
    work = read_here(&reader, theirs.addr, theirs.key, other.net) == ZPS_OK &&
           memcmp(reader.buffer, memory, sizeof memory) == 0 &&
           read_here(&reader, theirs.addr, theirs.key + 1, other.net) != ZPS_OK;
    zps_net_mem_release(other.net, &theirs);
  }
  stranger_reader_close(&reader);
  zps_net_close(other.net);
  return work;
}

/* Small keys, neighbours of one's own, and random ones; at the beginning of memory, further on, and where one has it.
 */
static bool next_guess(struct stranger *all, struct stranger_reader *reader, uint64_t i, uint64_t n) {
  const uint64_t random = zps_rng_u64(&all->rng);
  const uint64_t key[] = {i / 4, reader->mem.key + i / 4 - n / 8, random, random & UINT32_MAX};
  const uint64_t addr[] = {0, i / 4 * STRANGER_READ_BYTES, reader->mem.addr,
                           (uintptr_t)reader->buffer & ~(uintptr_t)4095};
  return stranger_read_begin(reader, &all->to, sizeof all->to, addr[i / 16 % 4], key[i % 4]);
}

static void count(struct stranger *all, struct stranger_reader *reader) {
  reader->is_reading = false;
  all->n_tried++;
  if (reader->code != ZPS_OK) return;
  all->n_done++;
  printf("read: key 0x%016llx, address 0x%llx\n", (unsigned long long)reader->read.key,
         (unsigned long long)reader->read.addr);
}

int stranger_keys(struct stranger *all, unsigned long n) {
  static struct stranger_reader readers[AT_ONCE];
  unsigned long n_begun = 0, n_flying = 0;
  if (!reads_work()) return stranger_give_up("reads", "do not work between two ends of its own");
  for (unsigned r = 0; r < AT_ONCE; r++)
    if (!stranger_reader_open(&readers[r])) return 2;
  while (n_begun < n || n_flying > 0) {
    unsigned done = 0;
    for (unsigned r = 0; r < AT_ONCE; r++) {
      struct stranger_reader *const reader = &readers[r];
      done += zps_net_progress(reader->self.net) > 0;
      if (reader->is_reading && reader->is_done) {
        count(all, reader);
        n_flying--;
      }
      if (reader->is_reading) {
        stranger_read_must_end(reader);
      } else if (n_begun < n) {
        if (!next_guess(all, reader, n_begun, n)) return stranger_give_up("a read", "cannot be begun");
        n_begun++, n_flying++, done++;
      }
    }
    if (done == 0) nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
  }
  for (unsigned r = 0; r < AT_ONCE; r++) {
    all->n_lost += readers[r].self.n_lost + readers[r].self.is_lost;
    stranger_reader_close(&readers[r]);
  }
  return all->n_done > 0 ? 1 : 0;
}
