#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "proto/control.h"
#include "proto/control_tensor.h"
#include "tests/fuzz/methods_impl.h"
#include "tests/fuzz/must.h"
#include "tests/fuzz/one_loop.h"
#include "tests/support/control_again.h"

enum { PATIENCE_MS = 10000 };
/* Statistics wait for servers, and for their turn; all else that does not say how long it waits is answered at once. */
#define AT_ONCE_NS (8 * ZPS_NS_PER_S)

void client_forget(struct asked **at) {
  struct asked *const asked = *at;
  *at = asked->next;
  free(asked->id);
  free(asked);
}

/* ---- what is asked ---- */

/* Any value may be one; "[ID]". */
static char *id_text(const zps_json *id) {
  zps_json *const list = zps_json_append(zps_json_array(), zps_json_copy(id));
  char *const text = list ? zps_json_dump(list) : NULL;
  must(text != NULL);
  zps_json_unref(list);
  return text;
}

/* Not before a token lets it in. */
static bool has_token(const zps_json *params) {
  const char *const token = zps_json_opt_str(params, "token", ""), *const job = zps_json_opt_str(params, "job", "");
  return (strcmp(token, client_config.tokens[0]) == 0 && strcmp(job, "train") == 0) ||
         (strcmp(token, client_config.tokens[1]) == 0 && strcmp(job, "k") == 0);
}

static bool may_ask(const struct client *client, const char *name, const zps_json *params) {
  const struct methods_method *const method = methods_find(name);
  if (!client->has_said_hello) return strcmp(name, "hello") == 0;
  if (!method || method->notifies || !(method->roles & client->role)) return false;
  const bool joins = strcmp(name, "job.join") == 0 || strcmp(name, "job.next") == 0;
  return !joins || !client_config.asks_for_tokens || has_token(params);
}

/* Until when it must be answered; ZPS_NEVER: nobody knows. */
static uint64_t due_ns(const char *name, const zps_json *params) {
  static const char *const waiting[] = {"job.join", "job.next", "job.linked", "tensor.close", "group.open", NULL};
  const uint64_t timeout_ms = zps_json_opt_u64(params, "timeout_ms", PATIENCE_MS);
  for (unsigned i = 0; waiting[i]; i++) {
    if (strcmp(name, waiting[i]) != 0) continue;
    return timeout_ms > PATIENCE_MS ? ZPS_NEVER : one_loop_now_ns + AT_ONCE_NS + timeout_ms * ZPS_NS_PER_MS;
  }
  return one_loop_now_ns + AT_ONCE_NS;
}

static void add_asked(struct client *client, const struct zps_message *message) {
  struct asked *const asked = calloc(1, sizeof *asked);
  must(asked != NULL);
  snprintf(asked->name, sizeof asked->name, "%s", message->method);
  asked->id = id_text(message->id);
  asked->may = may_ask(client, message->method, message->params);
  asked->of_servers = strcmp(message->method, "tensor.register") == 0;
  asked->due_ns = due_ns(message->method, message->params);
  asked->next = client->asked;
  client->asked = asked;
}

void client_note_line(struct client *client, const char *line, size_t len) {
  zps_json *root;
  struct zps_message message;
  if (zps_json_parse(line, len, &root, NULL) != ZPS_OK) return;
  if (zps_message_read(root, &message, NULL) == ZPS_OK && message.kind == ZPS_MESSAGE_CALL) add_asked(client, &message);
  zps_json_unref(root);
}

/* ---- what is heard ---- */

static struct asked **find_asked(struct client *client, const zps_json *id) {
  char *const text = id_text(id);
  struct asked **at = &client->asked, **found = NULL;
  for (; *at; at = &(*at)->next) /* of several the one that was asked first */
    if (strcmp((*at)->id, text) == 0) found = at;
  free(text);
  return found;
}

static struct self *self_of(const struct client *client) {
  for (unsigned i = 0; i < CLIENTS; i++)
    if (selves[i].client == client) return &selves[i];
  return NULL;
}

static void take_word(const zps_json *result, const char *key, char word[24]) {
  const char *const text = zps_json_opt_str(result, key, "");
  if (text[0]) snprintf(word, 24, "%s", text);
}

/* Jobs here have any number of places; control_again() takes it that there are three. */
static void look_at_tensor(const zps_json *body) {
  struct zps_tensor_spec spec = {.n_parts = 0};
  struct zps_error error = {.text = ""};
  const zps_err_t err = zps_control_registered_read(body, ZPS_SERVERS_MAX, &spec, &error);
  if (err) fprintf(stderr, "tensor.register answer: %s\n", error.text);
  must(err == ZPS_OK);
  zps_tensor_spec_fini(&spec);
}

/* It can be read by who is to read it. */
static void look(const char *name, const zps_json *body) {
  zps_json *again;
  struct zps_error error = {.text = ""};
  if (strcmp(name, "job.peers answer") == 0) return; /* it is read as that of a world of two */
  if (strcmp(name, "tensor.register answer") == 0) {
    look_at_tensor(body);
    return;
  }
  const zps_err_t err = control_again(name, body, &again, &error);
  if (err == ZPS_ERR_UNKNOWN) return;
  if (err) fprintf(stderr, "%s: %s\n", name, error.text);
  must(err == ZPS_OK);
  zps_json_unref(again);
}

static void take_result(struct client *client, const struct asked *asked, const zps_json *result) {
  char name[64];
  struct self *const self = self_of(client);
  if (!asked->may) fprintf(stderr, "'%s' of role %u has a result\n", asked->name, client->role);
  must(asked->may && zps_json_is_object(result));
  snprintf(name, sizeof name, "%s answer", asked->name);
  look(name, result);
  if (!self) return;
  take_word(result, "job_id", self->job_id);
  take_word(result, "incarnation", self->incarnation);
  self->rank = zps_json_opt_u64(result, "rank", self->rank);
  self->generation = zps_json_opt_u64(result, "generation", self->generation);
}

/* An error without a number is of a line that it could not make anything of. */
static void answered(struct client *client, const struct zps_message *message, const zps_json *root) {
  const zps_json *const id = zps_json_get(root, "id");
  struct asked **const at = id ? find_asked(client, id) : NULL;
  if (!at && message->kind == ZPS_MESSAGE_ERROR && !message->has_number) return;
  must(at != NULL);
  if (message->kind == ZPS_MESSAGE_RESULT)
    take_result(client, *at, message->result);
  else
    must(message->error.code != ZPS_OK && message->error.text[0]);
  client_forget(at);
}

static void add_call(struct client *client, const struct zps_message *message) {
  look(message->method, message->params);
  if (client->n_calls == CALLS_MAX) return;
  client->calls[client->n_calls++] = id_text(message->id);
}

/* A number or other value as an id is. */
static void answer(struct client *client, unsigned which, unsigned how) {
  static const char *const answers[] = {
      "{\"jsonrpc\":\"2.0\",\"id\":%.*s,\"result\":{}}\n",
      "{\"jsonrpc\":\"2.0\",\"id\":%.*s,\"error\":{\"code\":-12,\"message\":\"no\"}}\n",
      "{\"jsonrpc\":\"2.0\",\"id\":%.*s,\"result\":{\"shards\":[{\"job_id\":\"0x1\",\"tensor\":0}],\"server\":[]}}\n",
      "{\"jsonrpc\":\"2.0\",\"id\":%.*s,\"result\":[]}\n",
      "{\"jsonrpc\":\"2.0\",\"id\":%.*s1,\"result\":{}}\n",
      "{\"jsonrpc\":\"2.0\",\"id\":%.*s,\"error\":{\"code\":-32602,\"message\":\"\"}}\n"};
  char text[300];
  if (client->n_calls == 0) return;
  char *const id = client->calls[which %= client->n_calls];
  const size_t len = strlen(id);
  if (len > 2 && len < 40) {
    const char *const form = answers[how % (sizeof answers / sizeof answers[0])];
    const int n = snprintf(text, sizeof text, form, (int)len - 2, id + 1);
    client_send_bytes(client, text, (size_t)n);
  }
  memmove(&client->calls[which], &client->calls[which + 1], (--client->n_calls - which) * sizeof client->calls[0]);
  free(id);
}

void client_answer(unsigned who, unsigned which, unsigned how) {
  if (selves[who].client) answer(selves[who].client, which, how);
}

void client_answers_all(unsigned who, bool answers) {
  struct client *const client = selves[who].client;
  if (!client) return;
  client->answers_all = answers;
  while (answers && client->n_calls > 0) answer(client, 0, 0);
}

void client_take_line(struct client *client, const char *line, size_t len) {
  zps_json *root;
  struct zps_message message;
  must(zps_json_parse(line, len, &root, NULL) == ZPS_OK);
  must(zps_message_read(root, &message, NULL) == ZPS_OK);
  if (message.kind >= ZPS_MESSAGE_RESULT)
    answered(client, &message, root);
  else if (message.kind == ZPS_MESSAGE_CALL)
    add_call(client, &message);
  else
    look(message.method, message.params);
  zps_json_unref(root);
  if (client->answers_all && client->n_calls > 0) answer(client, 0, 0);
}

/* ---- what must have come ---- */

static void check(bool all) {
  for (unsigned i = 0; i < CLIENTS; i++) {
    for (const struct asked *asked = selves[i].client ? selves[i].client->asked : NULL; asked; asked = asked->next) {
      const bool is_due = all ? asked->due_ns != ZPS_NEVER : !asked->of_servers && asked->due_ns < one_loop_now_ns;
      if (is_due) fprintf(stderr, "client %u has no answer to '%s', id %s\n", i, asked->name, asked->id);
      must(!is_due);
    }
  }
}

void clients_check(void) {
  check(false);
}
void clients_check_all(void) {
  check(true);
}
