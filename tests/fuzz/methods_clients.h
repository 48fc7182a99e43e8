/* Clients of a coordinator, on the loop that it runs on: raw connections, which say what a fuzz target lets them say.
 * They look at all that they are told: each call is answered once, in time, by a message that can be read; with a
 * result only where the client's role has the method, and, where tokens are asked for, has shown one that is good. */
#ifndef ZPS_TESTS_FUZZ_METHODS_CLIENTS_H
#define ZPS_TESTS_FUZZ_METHODS_CLIENTS_H

#include <uv.h>

#include "tests/fuzz/methods_lines.h"

enum { CLIENTS = 8 };

struct client_config {
  uv_loop_t *loop;
  const char *address;   /* of the coordinator, HOST:PORT */
  bool asks_for_tokens;  /* the coordinator does */
  const char *tokens[4]; /* the first is good for "train", the second for "k", the others for neither */
};

struct client_change {
  unsigned which, what;
};

/* What is said beside a golden body. */
struct client_say {
  const struct methods_method *method;
  unsigned variant, job, world, rank; /* 1-based world; which of two names */
  unsigned token;                     /* 0: none; else number token - 1 */
  unsigned of;                        /* the client whose job, secret and rank are named */
  bool calls;                         /* false: a notification */
  bool is_next;                       /* where the method allows it, with what the last generation was */
  struct client_change changes[3];
  unsigned n_changes;
};

void clients_begin(const struct client_config *config);
/* Connects, and says hello: as a role of OF_*; with `odd` the hello is another one. */
void client_connect(unsigned who, unsigned role, unsigned odd);
bool client_is_up(unsigned who);
/* Ends the connection; the job that the client is in stays its own. */
void client_end(unsigned who);
void client_say(unsigned who, const struct client_say *say);
void client_beat(unsigned who);
/* Bytes as they are, with a newline behind them, or not. */
void client_send(unsigned who, const void *bytes, size_t len, bool ends);
/* Answers a call of the coordinator's. */
void client_answer(unsigned who, unsigned which, unsigned how);
/* From now on calls are answered as they come. */
void client_answers_all(unsigned who, bool answers);
/* Whether what should have been answered by now is. */
void clients_check(void);
/* Whether all is answered that could have been. */
void clients_check_all(void);
/* None is left. */
bool clients_are_gone(void);

#endif
