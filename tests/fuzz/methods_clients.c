#include "tests/fuzz/methods_impl.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/version.h"
#include "common/control/message.h"
#include "tests/fuzz/must.h"

struct line {
  uv_write_t write;
  char bytes[];
};

struct client_config client_config;
struct self selves[CLIENTS];
static unsigned n_open; /* connections whose handles are there */

void clients_begin(const struct client_config *of) {
  client_config = *of;
  memset(selves, 0, sizeof selves);
  for (unsigned i = 0; i < CLIENTS; i++) strcpy(selves[i].job_id, "0x0");
}

bool client_is_up(unsigned who) {
  return selves[who].client != NULL;
}

bool clients_are_gone(void) {
  return n_open == 0;
}

/* ---- the end ---- */

static void on_closed(uv_handle_t *handle) {
  struct client *const client = handle->data;
  while (client->asked) client_forget(&client->asked);
  for (unsigned i = 0; i < client->n_calls; i++) free(client->calls[i]);
  free(client->said);
  free(client->heard);
  free(client);
  n_open--;
}

static void end(struct client *client) {
  for (unsigned i = 0; i < CLIENTS; i++)
    if (selves[i].client == client) selves[i].client = NULL;
  if (client->is_closing) return;
  client->is_closing = true;
  uv_close((uv_handle_t *)&client->tcp, on_closed);
}

void client_end(unsigned who) {
  if (selves[who].client) end(selves[who].client);
}

static void note_bytes(struct client *client, const char *bytes, size_t len) {
  client->said = realloc(client->said, client->n_said + len + 1);
  must(client->said != NULL);
  memcpy(client->said + client->n_said, bytes, len);
  client->n_said += len;
  size_t at = 0;
  for (const char *newline; (newline = memchr(client->said + at, '\n', client->n_said - at)) != NULL;) {
    const size_t line = (size_t)(newline - (client->said + at));
    const size_t bare = line - (line > 0 && newline[-1] == '\r');
    if (bare > 0) client_note_line(client, client->said + at, bare);
    client->has_said_hello |= bare > 0; /* by the first line, or it is closed */
    at += line + 1;
  }
  client->n_said -= at;
  memmove(client->said, client->said + at, client->n_said);
}

static void on_written(uv_write_t *write, int status) {
  (void)status;
  free(write->data);
}

void client_send_bytes(struct client *client, const char *bytes, size_t len) {
  struct line *const line = malloc(sizeof *line + len);
  must(line != NULL);
  memcpy(line->bytes, bytes, len);
  line->write.data = line;
  note_bytes(client, bytes, len);
  const uv_buf_t buf = {.base = line->bytes, .len = len};
  must(uv_write(&line->write, (uv_stream_t *)&client->tcp, &buf, 1, on_written) == 0);
}

void client_send(unsigned who, const void *bytes, size_t len, bool ends) {
  struct client *const client = selves[who].client;
  if (!client) return;
  if (len > 0) client_send_bytes(client, bytes, len);
  if (ends) client_send_bytes(client, "\n", 1);
}

/* Consumes it. */
static void send_message(struct client *client, zps_json *message) {
  char *const text = message ? zps_json_dump(message) : NULL;
  must(text != NULL);
  const size_t len = strlen(text);
  text[len] = '\n';
  client_send_bytes(client, text, len + 1);
  free(text);
  zps_json_unref(message);
}

static void send_call(unsigned who, const char *name, zps_json *params) {
  send_message(selves[who].client, zps_message_call(++selves[who].n_asked, name, params));
}

void client_beat(unsigned who) {
  if (selves[who].client && selves[who].client->role != OF_ADMINS)
    send_message(selves[who].client, zps_message_notification("heartbeat", zps_json_object()));
}

static bool is_join(const struct methods_method *method) {
  return strcmp(method->name, "job.join") == 0 || strcmp(method->name, "job.next") == 0;
}

static zps_json *join_of(zps_json *body, const struct client_say *say, const struct self *of) {
  static const char *const jobs[] = {"train", "k"};
  body = zps_json_set_str(body, "job", jobs[say->job % 2]);
  body = zps_json_set_u64(body, "world", say->world);
  body = zps_json_set_u64(body, "rank", say->rank);
  if (say->token > 0) body = zps_json_set_str(body, "token", client_config.tokens[(say->token - 1) % 4]);
  if (strcmp(say->method->name, "job.join") == 0) return body;
  body = zps_json_set_u64(body, "min_world", 1);
  body = zps_json_set_u64(body, "max_world", say->world);
  if (!say->is_next) return body;
  body = zps_json_set_u64(body, "generation", of->generation);
  body = zps_json_set_u64(body, "last_rank", of->rank);
  return zps_json_set_str(body, "last_job", of->job_id);
}

/* What is of the one who says it, or of another client. */
static zps_json *fill(zps_json *body, const struct client_say *say) {
  const struct self *const of = &selves[say->of % CLIENTS];
  const unsigned number = say->of % CLIENTS;
  const char *const name = say->method->name;
  if (is_join(say->method)) body = join_of(body, say, of);
  if (zps_json_get(body, "timeout_ms")) body = zps_json_set_u64(body, "timeout_ms", 500u << say->world);
  if (zps_json_get(body, "job_id") || strcmp(name, "job.resume") == 0)
    body = zps_json_set_str(body, "job_id", of->job_id);
  if (strcmp(name, "server.register") == 0) {
    char server[8];
    snprintf(server, sizeof server, "s%u", say->rank);
    body = zps_json_set_str(body, "name", server);
    body = zps_json_set_u64(body, "pid", 100 + number);
    body = zps_json_set_hex(body, "secret", 1 + number);
    if (say->is_next && of->incarnation[0]) body = zps_json_set_str(body, "incarnation", of->incarnation);
  } else if (is_join(say->method)) {
    body = zps_json_set_u64(body, "pid", 100 + number);
    body = zps_json_set_hex(body, "secret", 1 + number);
  } else if (strcmp(name, "job.resume") == 0) {
    body = zps_json_set_hex(body, "secret", 1 + number);
    body = zps_json_set_u64(body, "rank", of->rank);
    body = zps_json_set_str(body, "incarnation", of->incarnation);
  } else if (strcmp(name, "tensor.register") == 0 && !zps_json_get(body, "ranks")) {
    body = zps_json_set_u64(body, "rows", 1000 + say->world);
  } else if (strcmp(name, "group.open") == 0) {
    zps_json *ranks = zps_json_array();
    for (unsigned i = 0; i < say->world; i++) ranks = zps_json_append_u64(ranks, i);
    body = zps_json_set(body, "ranks", ranks);
  } else if (zps_json_get(body, "tensor")) {
    body = zps_json_set_u64(body, "tensor", say->rank);
  }
  return body;
}

void client_say(unsigned who, const struct client_say *say) {
  if (!selves[who].client) return;
  zps_json *body = fill(methods_body(say->method, say->variant), say);
  for (unsigned i = 0; i < say->n_changes; i++)
    body = methods_change(body, say->changes[i].which, say->changes[i].what);
  if (say->calls)
    send_call(who, say->method->name, body);
  else
    send_message(selves[who].client, zps_message_notification(say->method->name, body));
}

static void on_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *buf) {
  static char room[65536];
  (void)handle, (void)suggested;
  *buf = (uv_buf_t){.base = room, .len = sizeof room};
}

static void on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf) {
  struct client *const client = stream->data;
  if (n < 0) {
    end(client);
    return;
  }
  client->heard = realloc(client->heard, client->n_heard + (size_t)n + 1);
  must(client->heard != NULL);
  memcpy(client->heard + client->n_heard, buf->base, (size_t)n);
  client->n_heard += (size_t)n;
  size_t at = 0;
  for (const char *newline; (newline = memchr(client->heard + at, '\n', client->n_heard - at)) != NULL;) {
    const size_t len = (size_t)(newline - (client->heard + at));
    client_take_line(client, client->heard + at, len);
    at += len + 1;
  }
  client->n_heard -= at;
  memmove(client->heard, client->heard + at, client->n_heard);
}

/* ---- the beginning ---- */

static void on_connected(uv_connect_t *connect, int status) {
  struct client *const client = connect->data;
  if (status == UV_ECANCELED) return;
  if (status < 0)
    end(client);
  else
    must(uv_read_start((uv_stream_t *)&client->tcp, on_alloc, on_read) == 0);
}

static zps_json *hello(unsigned role, unsigned odd) {
  static const char *const names[] = {[OF_SERVERS] = "server", [OF_RANKS] = "worker", [OF_ADMINS] = "ctl"};
  zps_json *params = zps_json_set_u64(zps_json_object(), "protocol", ZPS_PROTOCOL_VERSION + (odd == 1));
  params = zps_json_set_str(params, "version", odd == 2 ? "" : "1.0");
  return zps_json_set_str(params, "role", odd == 3 ? "\x01" : names[role]);
}

void client_connect(unsigned who, unsigned role, unsigned odd) {
  struct sockaddr_in to = {.sin_family = AF_INET};
  if (selves[who].client) return;
  struct client *const client = calloc(1, sizeof *client);
  must(client != NULL && uv_tcp_init(client_config.loop, &client->tcp) == 0);
  n_open++;
  client->tcp.data = client->connect.data = client;
  client->role = role;
  to.sin_port = htons((uint16_t)atoi(strrchr(client_config.address, ':') + 1));
  selves[who].client = client;
  must(uv_tcp_connect(&client->connect, &client->tcp, (struct sockaddr *)&to, on_connected) == 0);
  if (odd != 4) send_call(who, "hello", hello(role, odd));
}
