/* Warnings before this daemon stops: its certificate ends, its state directory fills up, its memory runs out. Each is
 * logged at warn when it begins, and every 24 h while it lasts. The loop's thread calls all of it. */
#ifndef ZPS_SERVER_DAEMON_OUTLOOK_H
#define ZPS_SERVER_DAEMON_OUTLOOK_H

#include <stdint.h>

/* The facts of the moment; 0: there is no such thing. */
struct zps_outlook_facts {
  long long now_s;              /* calendar */
  long long certificate_ends_s; /* calendar */
  const char *certificate;      /* its file */
  const char *state_dir;
  uint64_t disk_bytes, disk_free_bytes;      /* of the state directory's file system */
  uint64_t memory_limit_bytes, memory_bytes; /* server.memory_limit, and what is in use */
};

/* What was said last; zero at the beginning. */
struct zps_outlook {
  struct zps_outlook_warning {
    unsigned grade; /* 0: nothing was wrong */
    long long at_s;
  } certificate, disk, memory;
};

void zps_outlook_look(struct zps_outlook *outlook, const struct zps_outlook_facts *facts);

#endif
