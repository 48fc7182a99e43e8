#include "common/net/ofi/hidden.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "common/base/text.h"

/* For its endpoint on each processor. Tried with libfabric 1.17 on 2 processors: 32 MiB are enough, 31.9 are not. */
enum { SHM_MIB_A_PROCESSOR = 16 };

static bool ends_with(const char *name, size_t len, const char *end) {
  const size_t end_len = strlen(end);
  return len >= end_len && memcmp(name + len - end_len, end, end_len) == 0;
}

/* Variables of libfabric that do not change what it offers. */
static bool is_harmless(const char *name, size_t len) {
  return strncmp(name, "FI_LOG_", 7) == 0 || ends_with(name, len, "_PORT_LOW_RANGE") ||
         ends_with(name, len, "_PORT_HIGH_RANGE");
}

static void tell_provider(const char *set, const char *provider, char *text, size_t size) {
  zps_text_add(text, size,
               "; FI_PROVIDER=%.60s is set, which hides all other providers of libfabric: unset it, or set it to %.40s",
               set, strcmp(provider, "auto") == 0 ? "net or tcp" : provider);
}

static void tell_shm(char *text, size_t size) {
  struct statvfs about;
  const long processors = sysconf(_SC_NPROCESSORS_ONLN);
  if (processors < 1 || statvfs("/dev/shm", &about) != 0) {
    zps_text_add(text, size, "; there is no /dev/shm to be seen, which shm needs");
    return;
  }
  const uint64_t free_mib = (uint64_t)about.f_bavail * about.f_frsize >> 20,
                 needed_mib = (uint64_t)processors * SHM_MIB_A_PROCESSOR;
  if (free_mib < needed_mib)
    zps_text_add(
        text, size,
        "; /dev/shm has %llu MiB free and shm needs about %llu (%d for each of %ld processors): make it larger "
        "(docker: --shm-size)",
        (unsigned long long)free_mib, (unsigned long long)needed_mib, (int)SHM_MIB_A_PROCESSOR, processors);
}

void zps_ofi_hidden(const char *provider, char *const *environment, char *text, size_t size) {
  bool has_others = false;
  text[0] = '\0';
  if (strcmp(provider, "shm") == 0) tell_shm(text, size);
  for (char *const *at = environment; *at; at++)
    if (strncmp(*at, "FI_PROVIDER=", 12) == 0 && (*at)[12]) tell_provider(*at + 12, provider, text, size);
  for (char *const *at = environment; *at; at++) {
    const size_t len = strcspn(*at, "=");
    if (strncmp(*at, "FI_", 3) != 0 || is_harmless(*at, len) || ends_with(*at, len, "FI_PROVIDER")) continue;
    zps_text_add(text, size, "%s%.80s", has_others ? ", " : "; libfabric is also told by the environment: ", *at);
    has_others = true;
  }
}
