#include "common/control/own_socket.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define NAME_MAX_BYTES sizeof "/zenps-4294967295/255.255.255.255:65535.4294967295"
#define FOLDER_MAX (sizeof((struct sockaddr_un *)0)->sun_path)

/* A comma would end the path in a list of addresses. */
static const char *parent(void) {
  const char *const tmp = getenv("TMPDIR");
  const bool fits = tmp && tmp[0] == '/' && strlen(tmp) + NAME_MAX_BYTES <= FOLDER_MAX && !strpbrk(tmp, ",\n");
  return fits ? tmp : "/tmp";
}

static void folder_path(char folder[FOLDER_MAX]) {
  snprintf(folder, FOLDER_MAX, "%s/zenps-%lu", parent(), (unsigned long)geteuid());
}

static bool is_private(const struct stat *st) {
  return S_ISDIR(st->st_mode) && st->st_uid == geteuid() && !(st->st_mode & (S_IRWXG | S_IRWXO));
}

static unsigned long network(void) {
  struct stat st;
  return stat("/proc/self/ns/net", &st) == 0 ? (unsigned long)st.st_ino : 0;
}

/* The forms of one address are one name. A name of the loopback interface stands for its IPv4 address, or with
 * `is_v6` for the other one. */
static void name_of(const struct zps_address *address, bool is_v6, char *name, size_t size) {
  struct in_addr v4;
  struct in6_addr v6;
  char host[INET6_ADDRSTRLEN] = "127.0.0.1";
  if (inet_pton(AF_INET, address->host, &v4) == 1) {
    inet_ntop(AF_INET, &v4, host, sizeof host);
    is_v6 = false;
  } else if (inet_pton(AF_INET6, address->host, &v6) == 1) {
    is_v6 = !IN6_IS_ADDR_V4MAPPED(&v6);
    inet_ntop(is_v6 ? AF_INET6 : AF_INET, is_v6 ? (const void *)&v6 : &v6.s6_addr[12], host, sizeof host);
  } else if (is_v6) {
    strcpy(host, "::1");
  }
  snprintf(name, size, is_v6 ? "[%s]:%d.%lu" : "%s:%d.%lu", host, atoi(address->port), network());
}

zps_err_t zps_own_socket_make(const char *address, char own[ZPS_OWN_SOCKET_MAX], struct zps_error *error) {
  struct zps_address parsed;
  char folder[FOLDER_MAX], name[80];
  struct stat st;
  const zps_err_t err = zps_address_parse(address, &parsed, error);
  if (err) return err;
  folder_path(folder);
  if (mkdir(folder, 0700) < 0 && errno != EEXIST)
    return zps_fail_errno(error, ZPS_ERR_IO, errno,
                          "cannot make the folder %s, for the Unix socket of this user (TMPDIR says where)", folder);
  if (lstat(folder, &st) < 0) return zps_fail_errno(error, ZPS_ERR_IO, errno, "cannot look at the folder %s", folder);
  if (!is_private(&st))
    return zps_fail(
        error, ZPS_ERR_REFUSED,
        "%s is of user %lu and mode %04o: it must be a folder of user %lu that nobody else may enter (0700). "
        "Remove it, or set TMPDIR to another folder, for all processes that use this coordinator",
        folder, (unsigned long)st.st_uid, (unsigned)st.st_mode & 07777u, (unsigned long)geteuid());
  name_of(&parsed, false, name, sizeof name);
  snprintf(own, ZPS_OWN_SOCKET_MAX, "unix:%s/%s", folder, name);
  return ZPS_OK;
}

bool zps_own_socket_find(const struct zps_address *address, char own[ZPS_OWN_SOCKET_MAX]) {
  char folder[FOLDER_MAX], name[80];
  struct stat st;
  if (address->is_unix || !zps_address_is_loopback(address)) return false;
  folder_path(folder);
  if (lstat(folder, &st) < 0 || !is_private(&st)) return false;
  for (int is_v6 = 0; is_v6 < 2; is_v6++) {
    name_of(address, is_v6, name, sizeof name);
    snprintf(own, ZPS_OWN_SOCKET_MAX, "%s/%s", folder, name);
    if (lstat(own, &st) == 0 && S_ISSOCK(st.st_mode)) return true;
  }
  return false;
}
