/* Takes arbitrary bytes for zenpsd's configuration file. It is read, with a complete set of options, or refused with a
 * sentence. */
#include "tests/fuzz/fuzz.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "server/daemon/options.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  struct zps_options options;
  struct zps_error error = {.text = ""};
  char path[40], program[] = "zenpsd", flag[60];
  char *argv[] = {program, flag, NULL};
  struct zps_config_rest rest;
  const int fd = memfd_create("fuzz", MFD_CLOEXEC);
  if (fd < 0 || write(fd, data, size) != (ssize_t)size) abort();
  snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  snprintf(flag, sizeof flag, "--config=%s", path);
  zps_err_t err = zps_config_load(&zps_options_table, 2, argv, NULL, &options, &rest, &error);
  close(fd);
  if (!err) {
    err = zps_options_complete(&options, &error);
    if (!err && (!options.server_name || !options.server_host || options.server_reduce_threads == 0)) abort();
    zps_config_fini(&zps_options_table, &options);
  }
  if (err && !error.text[0]) abort();
  return 0;
}
