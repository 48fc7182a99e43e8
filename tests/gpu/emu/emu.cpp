/* The scheduler: blocks become resident, their threads take turns, barriers and collectives bring them together. */
#include "tests/gpu/emu/emu.hpp"

#include <cstdarg>
#include <cstdio>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "common/base/rng.h"
#include "tests/gpu/emu/fiber.hpp"

namespace zps_emu {
namespace {

enum { WARP = 32, BLOCK_THREADS_MAX = 1024, RESIDENT_MAX = 4, AHEAD = 4 };
enum State { READY, AT_BARRIER, IN_COLLECTIVE, DONE };
struct Meeting { /* of lanes in a collective */
  uint32_t mask = 0, arrived = 0;
  Collective kind = SYNC_WARP;
  uint64_t values[WARP];
  unsigned sources[WARP];
};

struct Block;

struct Thread {
  Fiber fiber;
  Block *block = nullptr;
  Index index = {0, 0, 0};
  unsigned number = 0;
  State state = DONE;
  uint64_t result = 0;
};

struct Warp {
  std::vector<Meeting> meetings;
  uint32_t done = 0; /* lanes that have returned */
};

struct Shared {
  int id;
  std::unique_ptr<uint64_t[]> memory;
};

struct Block {
  Index index = {0, 0, 0};
  std::vector<Thread> threads;
  std::vector<Warp> warps;
  std::vector<Shared> shared;
  unsigned n_threads = 0, n_done = 0, n_waiting = 0;
  const char *barrier_file = nullptr;
  int barrier_line = 0;
};

struct Launch {
  const char *name;
  Index grid, block;
  const std::function<void()> *body;
  std::vector<Thread *> ready;
  uint64_t turns = 0;
  bool failed = false;
};

zps_rng rng = {1};
uint64_t turns_max = 400u << 20; /* a kernel that takes more waits for something that never comes */
uint64_t n_switches;
std::string error, taken;
Thread *running;
Launch *current;
Block blocks[RESIDENT_MAX]; /* kept, with their threads' stacks, from launch to launch */

__attribute__((format(printf, 1, 2))) void fail(const char *format, ...) {
  if (current) current->failed = true;
  if (!error.empty()) return;
  char text[400];
  va_list args;
  va_start(args, format);
  std::vsnprintf(text, sizeof text, format, args);
  va_end(args);
  error = current ? std::string(current->name) + ": " + text : text;
}

void leave(bool last) {
  Fiber *const from = &running->fiber;
  fiber_switch(from, &main_fiber, last);
}

void wake(Thread *thread) {
  thread->state = READY;
  current->ready.push_back(thread);
}

/* A thread that fails stops there; the launch is given up before another one runs. */
void stop() {
  running->state = DONE;
  leave(true);
}

void enter() {
  fiber_entered();
  (*current->body)();
  Thread *const thread = running;
  Warp *const warp = &thread->block->warps[thread->number / WARP];
  const uint32_t bit = 1u << thread->number % WARP;
  for (const Meeting &meeting : warp->meetings)
    if (meeting.mask & bit)
      fail("%s waits for lane %u of block %u, which has returned", collective_name(meeting.kind), thread->number % WARP,
           thread->block->index.x);
  warp->done |= bit;
  thread->block->n_done++;
  if (thread->block->n_waiting > 0)
    fail("thread %u of block %u returned while others wait at the barrier in %s:%d", thread->number,
         thread->block->index.x, thread->block->barrier_file, thread->block->barrier_line);
  thread->state = DONE;
  leave(true);
}

void start_block(Block *block, uint64_t number) {
  const Index &size = current->block, &grid = current->grid;
  block->index = {static_cast<unsigned>(number % grid.x), static_cast<unsigned>(number / grid.x % grid.y),
                  static_cast<unsigned>(number / grid.x / grid.y)};
  block->n_threads = size.x * size.y * size.z;
  block->n_done = block->n_waiting = 0;
  block->warps.assign((block->n_threads + WARP - 1) / WARP, Warp());
  block->shared.clear();
  if (block->threads.size() < block->n_threads) {
    const size_t before = block->threads.size();
    block->threads.resize(block->n_threads);
    for (size_t i = before; i < block->n_threads; i++) fiber_create(&block->threads[i].fiber);
  }
  for (unsigned i = 0; i < block->n_threads; i++) {
    Thread *const thread = &block->threads[i];
    thread->block = block;
    thread->number = i;
    thread->index = {i % size.x, i / size.x % size.y, i / size.x / size.y};
    fiber_prepare(&thread->fiber, enter);
    wake(thread);
  }
}

/* No thread can go on: names the barrier or collective that the first one waits for. */
void explain_standstill() {
  for (const Block &block : blocks) {
    for (unsigned i = 0; i < block.n_threads; i++) {
      const Thread &thread = block.threads[i];
      if (thread.state == AT_BARRIER) {
        fail("%u of %u threads of block %u reached the barrier in %s:%d, the others wait elsewhere", block.n_waiting,
             block.n_threads, block.index.x, block.barrier_file, block.barrier_line);
        return;
      }
      if (thread.state != IN_COLLECTIVE) continue;
      for (const Meeting &meeting : block.warps[i / WARP].meetings) {
        fail("%s of lanes %08x in warp %u of block %u: only lanes %08x came", collective_name(meeting.kind),
             meeting.mask, i / WARP, block.index.x, meeting.arrived);
        return;
      }
    }
  }
  fail("nothing can go on");
}

void run_thread(Thread *thread) {
  running = thread;
  n_switches++;
  fiber_switch(&main_fiber, &thread->fiber, false);
  running = nullptr;
  if (thread->state == READY) current->ready.push_back(thread);
}

/* The next block to start: one of the first few that have not, because hardware promises no order. */
uint64_t take_block(std::vector<uint64_t> *waiting, uint64_t *next, uint64_t n_blocks) {
  while (waiting->size() < AHEAD && *next < n_blocks) waiting->push_back((*next)++);
  const size_t i = zps_rng_below(&rng, waiting->size());
  const uint64_t number = (*waiting)[i];
  waiting->erase(waiting->begin() + static_cast<ptrdiff_t>(i));
  return number;
}

void run(Launch *launch) {
  const uint64_t n_blocks = static_cast<uint64_t>(launch->grid.x) * launch->grid.y * launch->grid.z;
  const unsigned n_resident = 1 + static_cast<unsigned>(zps_rng_below(&rng, RESIDENT_MAX));
  std::vector<uint64_t> waiting;
  uint64_t next = 0, n_started = 0, n_finished = 0;
  for (Block &block : blocks) block.n_threads = block.n_done = 0;
  current = launch;
  while (n_finished < n_blocks && !launch->failed) {
    for (unsigned i = 0; i < n_resident && n_started < n_blocks; i++) {
      if (blocks[i].n_done < blocks[i].n_threads) continue;
      start_block(&blocks[i], take_block(&waiting, &next, n_blocks));
      n_started++;
    }
    if (launch->ready.empty()) {
      explain_standstill();
      break;
    }
    const size_t i = zps_rng_below(&rng, launch->ready.size());
    Thread *const thread = launch->ready[i];
    launch->ready[i] = launch->ready.back();
    launch->ready.pop_back();
    run_thread(thread);
    if (thread->state == DONE && thread->block->n_done == thread->block->n_threads) n_finished++;
    if (++launch->turns > turns_max) fail("no end in sight: a thread waits in a loop for what never comes");
  }
  current = nullptr;
}

uint64_t outcome(const Meeting &meeting, unsigned lane) {
  uint64_t bits = 0;
  switch (meeting.kind) {
    case SYNC_WARP:
      return 0;
    case SHUFFLE:
      if (!(meeting.mask >> meeting.sources[lane] & 1))
        fail("lane %u reads lane %u, which is not among the lanes %08x of the shuffle", lane, meeting.sources[lane],
             meeting.mask);
      else
        bits = meeting.values[meeting.sources[lane]];
      return bits;
    case BALLOT:
    case MATCH:
      break;
  }
  for (unsigned i = 0; i < WARP; i++) {
    if (!(meeting.mask >> i & 1)) continue;
    const bool is_in = meeting.kind == BALLOT ? meeting.values[i] != 0 : meeting.values[i] == meeting.values[lane];
    bits |= static_cast<uint64_t>(is_in) << i;
  }
  return bits;
}

}  // namespace

const Index &thread_index() {
  return running->index;
}
const Index &block_index() {
  return running->block->index;
}
const Index &block_size() {
  return current->block;
}
const Index &grid_size() {
  return current->grid;
}
unsigned lane_id() {
  return running->number % WARP;
}

const char *collective_name(Collective kind) {
  static const char *const names[] = {"__syncwarp", "__shfl_sync", "__ballot_sync", "__match_any_sync"};
  return names[kind];
}

void pause() {
  if (zps_rng_u64(&rng) & 1) leave(false);
}

void sync_threads(const char *file, int line) {
  Block *const block = running->block;
  if (block->n_done > 0) {
    fail("the barrier in %s:%d can never be reached by all: %u threads of block %u have returned", file, line,
         block->n_done, block->index.x);
    stop();
  }
  if (block->n_waiting > 0 && (block->barrier_line != line || std::strcmp(block->barrier_file, file) != 0)) {
    fail("thread %u of block %u is at the barrier in line %d, others wait at that in line %d", running->number,
         block->index.x, line, block->barrier_line);
    stop();
  }
  block->barrier_file = file;
  block->barrier_line = line;
  if (++block->n_waiting < block->n_threads) {
    running->state = AT_BARRIER;
    leave(false);
    return;
  }
  block->n_waiting = 0;
  for (unsigned i = 0; i < block->n_threads; i++)
    if (block->threads[i].state == AT_BARRIER) wake(&block->threads[i]);
  leave(false);
}

uint64_t collective(Collective kind, uint32_t mask, uint64_t value, unsigned source) {
  Thread *const thread = running;
  const unsigned lane = lane_id(), first = thread->number - lane;
  Warp *const warp = &thread->block->warps[thread->number / WARP];
  if (!(mask >> lane & 1)) {
    fail("lane %u calls %s for lanes %08x, which it is not among", lane, collective_name(kind), mask);
    stop();
  }
  if (warp->done & mask) {
    fail("%s of lanes %08x: lanes %08x have returned", collective_name(kind), mask, warp->done & mask);
    stop();
  }
  size_t at = 0;
  while (at < warp->meetings.size() && !(warp->meetings[at].mask & mask)) at++;
  if (at == warp->meetings.size()) {
    warp->meetings.emplace_back();
    warp->meetings[at].mask = mask;
    warp->meetings[at].kind = kind;
  }
  Meeting *const meeting = &warp->meetings[at];
  if (meeting->mask != mask || meeting->kind != kind) {
    fail("lane %u is in %s of lanes %08x, others in %s of lanes %08x", lane, collective_name(kind), mask,
         collective_name(meeting->kind), meeting->mask);
    stop();
  }
  meeting->arrived |= 1u << lane;
  meeting->values[lane] = value;
  meeting->sources[lane] = source;
  if (meeting->arrived != mask) {
    thread->state = IN_COLLECTIVE;
    leave(false);
    return thread->result;
  }
  for (unsigned i = 0; i < WARP; i++) {
    if (!(mask >> i & 1)) continue;
    Thread *const other = &thread->block->threads[first + i];
    other->result = outcome(*meeting, i);
    if (other != thread) wake(other);
  }
  warp->meetings.erase(warp->meetings.begin() + static_cast<ptrdiff_t>(at));
  return thread->result;
}

void *shared_memory(int id, size_t len_bytes) {
  Block *const block = running->block;
  for (const Shared &shared : block->shared)
    if (shared.id == id) return shared.memory.get();
  const size_t n = (len_bytes + 7) / 8;
  block->shared.push_back({id, std::unique_ptr<uint64_t[]>(new uint64_t[n])});
  uint64_t *const memory = block->shared.back().memory.get();
  for (size_t i = 0; i < n; i++) memory[i] = zps_rng_u64(&rng);
  return memory;
}

void launch(const char *name, dim3 grid, dim3 block, cudaStream_t stream, std::function<void()> body) {
  submit(stream, [=] {
    const uint64_t n_threads = static_cast<uint64_t>(block.x) * block.y * block.z;
    if (n_threads == 0 || n_threads > BLOCK_THREADS_MAX || grid.x == 0 || grid.y == 0 || grid.z == 0 ||
        grid.x > 0x7fffffffu || grid.y > 65535 || grid.z > 65535) {
      fail("%s: a grid of %u x %u x %u blocks of %llu threads cannot be launched", name, grid.x, grid.y, grid.z,
           static_cast<unsigned long long>(n_threads));
      return cudaErrorInvalidValue;
    }
    if (!error.empty()) return cudaErrorLaunchFailure;
    Launch now = {name, {grid.x, grid.y, grid.z}, {block.x, block.y, block.z}, &body, {}, 0, false};
    run(&now);
    return now.failed ? cudaErrorLaunchFailure : cudaSuccess;
  });
}

}  // namespace zps_emu

void zps_emu_seed(uint64_t seed) {
  zps_emu::rng.state = seed;
}

const char *zps_emu_take_error(void) {
  zps_emu::taken = zps_emu::error;
  zps_emu::error.clear();
  return zps_emu::taken.empty() ? nullptr : zps_emu::taken.c_str();
}

void zps_emu_limit_turns(uint64_t n) {
  zps_emu::turns_max = n;
}

uint64_t zps_emu_switches(void) {
  return zps_emu::n_switches;
}
