/* What methods_clients.c, which has clients say things, and methods_answers.c, which looks at what they hear, have in
 * common. */
#ifndef ZPS_TESTS_FUZZ_METHODS_IMPL_H
#define ZPS_TESTS_FUZZ_METHODS_IMPL_H

#include "common/control/message.h"
#include "tests/fuzz/methods_clients.h"

enum { CALLS_MAX = 64 };

/* A call that is not answered. */
struct asked {
  struct asked *next;
  char *id; /* in JSON */
  char name[48];
  bool of_servers; /* they are asked before it is answered, and may be slow */
  bool may;        /* a result is right */
  bool waits;      /* it may be answered later, by due_ns */
  uint64_t due_ns; /* ZPS_NEVER: no end is known */
};

/* A connection. */
struct client {
  uv_tcp_t tcp;
  uv_connect_t connect;
  unsigned role;
  bool has_said_hello, is_closing, answers_all;
  struct asked *asked;
  char *said; /* bytes of ours whose line has not ended */
  size_t n_said;
  char *heard; /* of theirs */
  size_t n_heard;
  char *calls[CALLS_MAX]; /* ids of the coordinator's */
  unsigned n_calls;
};

/* What outlives a connection. */
struct self {
  struct client *client; /* NULL: it has none */
  char job_id[24], incarnation[24];
  uint64_t rank, generation;
  uint64_t n_asked;
};

extern struct client_config client_config;
extern struct self selves[CLIENTS];

void client_send_bytes(struct client *client, const char *bytes, size_t len);
/* A line of ours: what it asks must be answered. */
void client_note_line(struct client *client, const char *line, size_t len);
/* A line of the coordinator's. */
void client_take_line(struct client *client, const char *line, size_t len);
void client_forget(struct asked **at);

#endif
