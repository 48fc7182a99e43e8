#include "server/state/etcd.h"

#include <stdlib.h>

#include "common/base/clock.h"

#define PAUSE_MS 20u
#define PAUSE_MAX_MS 200u

static zps_err_t read_answer(const struct zps_etcd_answer *answer, const char *path, zps_json **answer_p,
                             struct zps_error *error) {
  struct zps_error why;
  zps_err_t err = answer->status == 200 ? zps_json_parse(answer->body, answer->len, answer_p, &why)
                                        : zps_etcd_refusal_read(answer->status, answer->body, answer->len, &why);
  return err ? zps_fail(error, err, "etcd: %s: %.400s", path, why.text) : ZPS_OK;
}

static zps_err_t post(struct zps_etcd_transport *transport, const char *path, const char *text, uint64_t timeout_ms,
                      zps_json **answer_p, struct zps_error *error) {
  struct zps_etcd_answer answer = {.body = NULL};
  zps_err_t err = transport->ops->post(transport, path, text, timeout_ms, &answer, error);
  if (!err) err = read_answer(&answer, path, answer_p, error);
  free(answer.body);
  return err;
}

static zps_err_t dump(zps_json *body, const char *path, char **text_p, struct zps_error *error) {
  *text_p = body ? zps_json_dump(body) : NULL;
  zps_json_unref(body);
  return *text_p ? ZPS_OK : zps_fail(error, ZPS_ERR_NOMEM, "etcd: %s: no memory for the call", path);
}

zps_err_t zps_etcd_call(struct zps_etcd_transport *transport, const char *path, zps_json *body, uint64_t timeout_ms,
                        zps_json **answer_p, struct zps_error *error) {
  char *text;
  zps_err_t err = dump(body, path, &text, error);
  if (!err) err = post(transport, path, text, timeout_ms, answer_p, error);
  free(text);
  return err;
}

/* A member that is silent leaves half of the time to the others. */
zps_err_t zps_etcd_call_on(struct zps_etcd_transport *transport, const char *path, zps_json *body, uint64_t timeout_ms,
                           zps_json **answer_p, struct zps_error *error) {
  const uint64_t until_ns = zps_clock_ns() + timeout_ms * ZPS_NS_PER_MS;
  unsigned pause_ms = PAUSE_MS;
  char *text;
  zps_err_t err = dump(body, path, &text, error);
  if (err) return err;
  for (uint64_t left_ms = timeout_ms;;) {
    err = post(transport, path, text, left_ms > PAUSE_MAX_MS ? left_ms / 2 : left_ms, answer_p, error);
    const uint64_t now_ns = zps_clock_ns() + pause_ms * ZPS_NS_PER_MS;
    if ((err != ZPS_ERR_CONNECT && err != ZPS_ERR_TIMEOUT) || now_ns >= until_ns) break;
    transport->ops->pause(transport, pause_ms);
    pause_ms = 2 * pause_ms < PAUSE_MAX_MS ? 2 * pause_ms : PAUSE_MAX_MS;
    left_ms = (until_ns - now_ns) / ZPS_NS_PER_MS;
  }
  free(text);
  return err;
}
