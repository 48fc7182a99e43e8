#include "common/base/source.h"

#include <sys/stat.h>
#include <unistd.h>

#include "common/base/machine.h"

/* Seconds' worth of text, and an eighth of the memory, since the kept form takes several bytes for one of text. */
static uint64_t pipe_most(void) {
  const uint64_t most = 256ull << 20, bytes = zps_machine_memory_bytes();
  return bytes > 0 && bytes / 8 < most ? bytes / 8 : most;
}

zps_err_t zps_source_init(struct zps_source *source, int fd, const char *name, bool is_packed,
                          struct zps_error *error) {
  struct stat stat;
  *source = (struct zps_source){.name = name, .most_bytes = UINT64_MAX};
  if (fstat(fd, &stat) != 0) return ZPS_OK; /* a stream in memory */
  if (S_ISDIR(stat.st_mode)) return zps_fail(error, ZPS_ERR_INVALID, "%s is a folder: must be a file or a pipe", name);
  if (S_ISBLK(stat.st_mode) || (S_ISCHR(stat.st_mode) && !isatty(fd)))
    return zps_fail(error, ZPS_ERR_INVALID, "%s is a device: must be a file or a pipe", name);
  if (!S_ISREG(stat.st_mode)) {
    source->most_bytes = pipe_most();
  } else if (is_packed) {
    const uint64_t bytes = zps_machine_memory_bytes();
    if (bytes > 0) source->most_bytes = bytes / 4;
  }
  return ZPS_OK;
}

zps_err_t zps_source_add(struct zps_source *source, size_t n, struct zps_error *error) {
  source->n_bytes += n;
  if (source->n_bytes <= source->most_bytes) return ZPS_OK;
  return zps_fail(error, ZPS_ERR_INVALID,
                  "%s goes on after %llu bytes: must be at most that where it is packed or a pipe; a plain file may be "
                  "longer",
                  source->name, (unsigned long long)source->most_bytes);
}
