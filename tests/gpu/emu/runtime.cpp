/* Memory, streams and events. One lock around all: kernels and copies run under it, on the thread that waits. */
#include "tests/gpu/emu/runtime.hpp"

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <fcntl.h>
#include <map>
#include <mutex>
#include <set>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/gpu/emu/control.h"

struct zps_emu_stream {
  std::deque<std::function<cudaError_t()>> work;
  uint64_t n_submitted = 0, n_done = 0;
  bool is_draining = false, is_held = false;
};

struct zps_emu_event {
  zps_emu_stream *stream = nullptr; /* NULL: recorded nowhere */
  uint64_t after = 0;               /* so much of the stream's work */
};

namespace {

struct Region { /* of device memory, between its guard pages */
  char *pages;
  size_t len_bytes;
  int file; /* the file of the pages between */
};

std::recursive_mutex lock;
std::map<const char *, Region> regions; /* by the pointer handed out */
uint64_t n_pinned, n_granted = UINT64_MAX, n_stops;
unsigned n_open; /* nested openings of device memory */
zps_emu_stream default_stream;
std::set<const zps_emu_stream *> streams = {&default_stream};
cudaError_t last_error;

typedef std::lock_guard<std::recursive_mutex> Guard;

size_t page_bytes() {
  return static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

size_t whole_pages(size_t len_bytes) {
  return (len_bytes + page_bytes() - 1) / page_bytes() * page_bytes();
}

cudaError_t note(cudaError_t error) {
  if (error != cudaSuccess && error != cudaErrorNotReady) last_error = error;
  return error;
}

void protect(const Region &region, int how) {
  if (mprotect(region.pages + page_bytes(), whole_pages(region.len_bytes), how) != 0) abort();
}

/* Device memory can be touched while one of these lives. */
struct Opening {
  Opening() {
    if (n_open++ > 0) return;
    for (const auto &entry : regions) protect(entry.second, PROT_READ | PROT_WRITE);
  }
  ~Opening() {
    if (--n_open > 0) return;
    for (const auto &entry : regions) protect(entry.second, PROT_NONE);
  }
};

zps_emu_stream *stream_of(cudaStream_t stream) {
  return stream ? stream : &default_stream;
}

/* Runs the stream's work up to number `until`. Work may wait for events, which runs other streams. */
cudaError_t drain(zps_emu_stream *stream, uint64_t until) {
  if (stream->n_done >= until || stream->is_draining || stream->is_held) return cudaSuccess;
  cudaError_t first = cudaSuccess;
  Opening opening;
  stream->is_draining = true;
  while (stream->n_done < until) {
    const cudaError_t error = stream->work.front()();
    if (error == cudaErrorNotReady) break;
    stream->work.pop_front();
    if (first == cudaSuccess) first = error;
    stream->n_done++;
  }
  stream->is_draining = false;
  return note(first);
}

/* A destroyed event is done. */
bool is_done(const zps_emu_event &event) {
  return !event.stream || streams.count(event.stream) == 0 || event.stream->n_done >= event.after;
}

/* Until the event is done: without the lock, as others may let a stream go. */
cudaError_t wait_for(const zps_emu_event &event) {
  for (;; usleep(100)) {
    Guard guard(lock);
    const cudaError_t error = is_done(event) ? cudaSuccess : drain(event.stream, event.after);
    if (error != cudaSuccess || is_done(event)) return error;
  }
}

cudaError_t wait_for_all(zps_emu_stream *stream) {
  zps_emu_event all;
  {
    Guard guard(lock);
    all.stream = stream;
    all.after = stream->n_submitted;
  }
  return wait_for(all);
}

bool take_grant() {
  if (n_granted == UINT64_MAX) return true;
  if (n_granted == 0) return false;
  n_granted--;
  return true;
}

}  // namespace

namespace zps_emu {

void submit(cudaStream_t stream, std::function<cudaError_t()> work) {
  Guard guard(lock);
  zps_emu_stream *const to = stream_of(stream);
  to->work.push_back(std::move(work));
  to->n_submitted++;
}

}  // namespace zps_emu

void zps_emu::wait_for_word(cudaStream_t stream, const volatile unsigned *word, unsigned value) {
  submit(stream, [=] { return static_cast<int>(*word - value) >= 0 ? cudaSuccess : cudaErrorNotReady; });
}

int zps_emu::export_memory(const void *at, size_t *offset) {
  Guard guard(lock);
  if (!zps_emu_is_device(at)) return -1;
  const char *const byte = static_cast<const char *>(at);
  const Region &region = (--regions.upper_bound(byte))->second;
  *offset = static_cast<size_t>(byte - region.pages) - page_bytes();
  return dup(region.file);
}

size_t zps_emu::memory_behind(const void *at) {
  Guard guard(lock);
  if (!zps_emu_is_device(at)) return 0;
  const char *const byte = static_cast<const char *>(at);
  const auto entry = --regions.upper_bound(byte);
  return static_cast<size_t>(entry->first + entry->second.len_bytes - byte);
}

bool zps_emu_is_device(const void *at) {
  Guard guard(lock);
  const char *const byte = static_cast<const char *>(at);
  auto next = regions.upper_bound(byte);
  if (next == regions.begin()) return false;
  --next;
  return byte < next->first + next->second.len_bytes;
}

uint64_t zps_emu_allocations(void) {
  Guard guard(lock);
  return regions.size() + n_pinned;
}

void zps_emu_hold(void *stream, bool hold) {
  Guard guard(lock);
  stream_of(static_cast<cudaStream_t>(stream))->is_held = hold;
}

uint64_t zps_emu_stops(void) {
  Guard guard(lock);
  return n_stops;
}

void zps_emu_fail_allocation(uint64_t n) {
  n_granted = n;
}

cudaError_t cudaGetDeviceCount(int *count) {
  *count = 1;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  return note(device == 0 ? cudaSuccess : cudaErrorInvalidDevice);
}

cudaError_t cudaGetDevice(int *device) {
  *device = 0;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr, int) {
  *value = 2;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char *address, int len, int device) {
  snprintf(address, static_cast<size_t>(len), "00FE:%02X:00.0", static_cast<unsigned>(device));
  return cudaSuccess;
}

/* ------------------------------------------------------------ memory */

namespace {

/* Maps a file's pages, which is closed with them, or at once where that fails. NULL: it did. */
char *map_file(int file, size_t len_bytes) {
  const size_t page = page_bytes(), pages_bytes = whole_pages(len_bytes);
  void *const pages = mmap(nullptr, pages_bytes + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  const Region region = {static_cast<char *>(pages), len_bytes, file};
  if (pages == MAP_FAILED ||
      mmap(region.pages + page, pages_bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, file, 0) == MAP_FAILED) {
    if (pages != MAP_FAILED) munmap(pages, pages_bytes + 2 * page);
    close(file);
    return nullptr;
  }
  char *const at = region.pages + page + pages_bytes - len_bytes; /* ends where the guard page begins */
  if (n_open > 0) protect(region, PROT_READ | PROT_WRITE);
  regions[at] = region;
  return at;
}

cudaError_t map_memory(void **memory, size_t len) {
  Guard guard(lock);
  const size_t len_bytes = len ? (len + 15) & ~static_cast<size_t>(15) : 16;
  if (!take_grant()) return note(cudaErrorMemoryAllocation);
  const int file = memfd_create("zenps-emu", MFD_CLOEXEC);
  if (file < 0) return note(cudaErrorMemoryAllocation);
  if (ftruncate(file, static_cast<off_t>(whole_pages(len_bytes))) != 0) {
    close(file);
    return note(cudaErrorMemoryAllocation);
  }
  char *const at = map_file(file, len_bytes);
  if (!at) return note(cudaErrorMemoryAllocation);
  const Opening opening;
  memset(at + len_bytes - whole_pages(len_bytes), 0xa5, whole_pages(len_bytes));
  *memory = at;
  return cudaSuccess;
}

cudaError_t unmap_memory(void *memory) {
  Guard guard(lock);
  if (!memory) return cudaSuccess;
  const auto at = regions.find(static_cast<const char *>(memory));
  if (at == regions.end()) return note(cudaErrorInvalidValue);
  close(at->second.file);
  munmap(at->second.pages, whole_pages(at->second.len_bytes) + 2 * page_bytes());
  regions.erase(at);
  return cudaSuccess;
}

void count_stop() {
  Guard guard(lock);
  n_stops++;
}

}  // namespace

cudaError_t cudaMalloc(void **memory, size_t len) {
  count_stop();
  return map_memory(memory, len);
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes *attributes, const void *at) {
  *attributes = {zps_emu_is_device(at) ? cudaMemoryTypeDevice : cudaMemoryTypeUnregistered, 0};
  return cudaSuccess;
}

cudaError_t cudaFree(void *memory) {
  count_stop();
  return unmap_memory(memory);
}

cudaError_t cudaMallocAsync(void **memory, size_t len, cudaStream_t) {
  return map_memory(memory, len);
}

cudaError_t cudaFreeAsync(void *memory, cudaStream_t stream) {
  zps_emu::submit(stream, [=] { return unmap_memory(memory); });
  return cudaSuccess;
}

/* ------------------------------------------------------------ memory of other processes */

namespace {

/* Behind a handle: the file of a process. It goes with the last process that has it open or mapped. */
struct Shared {
  uint64_t magic, len_bytes;
  int process, file;
};
enum : uint64_t { SHARED_MAGIC = 0x7a656e707368617aull };

}  // namespace

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *handle, void *memory) {
  Guard guard(lock);
  const auto at = regions.find(static_cast<const char *>(memory));
  if (at == regions.end()) return note(cudaErrorInvalidValue);
  const Shared shared = {SHARED_MAGIC, at->second.len_bytes, getpid(), at->second.file};
  *handle = cudaIpcMemHandle_t();
  memcpy(handle, &shared, sizeof shared);
  return cudaSuccess;
}

cudaError_t cudaIpcOpenMemHandle(void **memory, cudaIpcMemHandle_t handle, unsigned) {
  Guard guard(lock);
  Shared shared;
  char path[64];
  struct stat status;
  memcpy(&shared, &handle, sizeof shared);
  if (shared.magic != SHARED_MAGIC || !take_grant()) return note(cudaErrorInvalidValue);
  snprintf(path, sizeof path, "/proc/%d/fd/%d", shared.process, shared.file);
  const int file = open(path, O_RDWR | O_CLOEXEC);
  if (file < 0) return note(cudaErrorInvalidValue);
  if (fstat(file, &status) != 0 || static_cast<uint64_t>(status.st_size) != whole_pages(shared.len_bytes)) {
    close(file);
    return note(cudaErrorInvalidValue);
  }
  *memory = map_file(file, shared.len_bytes);
  return note(*memory ? cudaSuccess : cudaErrorMemoryAllocation);
}

cudaError_t cudaIpcCloseMemHandle(void *memory) {
  count_stop();
  return unmap_memory(memory);
}

cudaError_t cudaHostAlloc(void **memory, size_t len, unsigned) {
  Guard guard(lock);
  n_stops++;
  void *const at = take_grant() ? malloc(len ? len : 1) : nullptr;
  if (!at) return note(cudaErrorMemoryAllocation);
  memset(at, 0xa5, len);
  n_pinned++;
  *memory = at;
  return cudaSuccess;
}

cudaError_t cudaFreeHost(void *memory) {
  Guard guard(lock);
  n_stops++;
  if (memory) n_pinned--;
  free(memory);
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t len, cudaMemcpyKind, cudaStream_t stream) {
  zps_emu::submit(stream, [=] {
    if (len > 0) memmove(to, from, len);
    return cudaSuccess;
  });
  return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *to, int byte, size_t len, cudaStream_t stream) {
  zps_emu::submit(stream, [=] {
    if (len > 0) memset(to, byte, len);
    return cudaSuccess;
  });
  return cudaSuccess;
}

/* ------------------------------------------------------------ streams and events */

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned) {
  Guard guard(lock);
  *stream = new zps_emu_stream;
  streams.insert(*stream);
  return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  const cudaError_t error = wait_for_all(stream);
  Guard guard(lock);
  streams.erase(stream);
  delete stream;
  return error;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  count_stop();
  return wait_for_all(stream_of(stream));
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  Guard guard(lock);
  const zps_emu_event now = *event; /* the work that it stands for at this call, as with CUDA */
  zps_emu::submit(stream, [=] {
    if (is_done(now)) return cudaSuccess;
    const cudaError_t error = drain(now.stream, now.after);
    return error != cudaSuccess || is_done(now) ? error : cudaErrorNotReady;
  });
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned) {
  *event = new zps_emu_event;
  return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  Guard guard(lock);
  event->stream = stream_of(stream);
  event->after = event->stream->n_submitted;
  return cudaSuccess;
}

/* The first to ask is told to ask again, and finds it done then. */
cudaError_t cudaEventQuery(cudaEvent_t event) {
  Guard guard(lock);
  if (is_done(*event)) return cudaSuccess;
  const cudaError_t error = drain(event->stream, event->after);
  return error == cudaSuccess ? cudaErrorNotReady : error;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  zps_emu_event now;
  {
    Guard guard(lock);
    now = *event;
  }
  return wait_for(now);
}

cudaError_t cudaGetLastError() {
  const cudaError_t error = last_error;
  last_error = cudaSuccess;
  return error;
}

const char *cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorInvalidValue:
      return "invalid argument";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorInvalidDevice:
      return "invalid device ordinal";
    case cudaErrorNotReady:
      return "device not ready";
    case cudaErrorLaunchFailure:
      return "unspecified launch failure";
    case cudaErrorNotSupported:
      return "operation not supported";
  }
  return "unknown error";
}
