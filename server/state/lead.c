#include "server/state/lead.h"

#include <stdio.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/text.h"

#define LOOK_MS 250u  /* between two looks at who leads */
#define RETRY_MS 200u /* after a call that failed */
#define RESIGN_MS 1000u

void zps_lead_init(struct zps_lead *lead, const struct zps_lead_config *config, struct zps_etcd_transport *transport) {
  *lead = (struct zps_lead){.config = *config, .transport = transport};
}

static uint64_t after(uint64_t now_ns, uint64_t ms) {
  return now_ns + ms * ZPS_NS_PER_MS;
}

/* For one call: two of them fail before the lease is over. */
static uint64_t call_ms(const struct zps_lead *lead) {
  return lead->config.lease_s * 1000 / 3;
}

static void leader_key(const struct zps_lead *lead, char key[ZPS_ETCD_KEY_MAX]) {
  snprintf(key, ZPS_ETCD_KEY_MAX, "%s/leader", lead->config.prefix);
}

static uint64_t etcd_away(struct zps_lead *lead, uint64_t now_ns, const struct zps_error *error) {
  lead->view.away = *error;
  return after(now_ns, RETRY_MS);
}

static uint64_t follow(struct zps_lead *lead, uint64_t now_ns, const struct zps_etcd_range *found) {
  snprintf(lead->view.leader, sizeof lead->view.leader, "%s", found->n > 0 ? found->kvs[0].value : "");
  zps_text_sanitize(lead->view.leader, strlen(lead->view.leader)); /* it will be logged and shown */
  return after(now_ns, LOOK_MS);
}

static uint64_t begin_to_lead(struct zps_lead *lead, uint64_t now_ns, uint64_t revision) {
  lead->view.state = ZPS_LEAD_LEADS;
  lead->view.revision = revision;
  lead->view.until_ns = lead->lease_until_ns;
  lead->view.leader[0] = '\0';
  return after(now_ns, call_ms(lead));
}

/* ------------------------------------------------------------ to follow, and to try to lead */

static zps_err_t look(struct zps_lead *lead, struct zps_etcd_range *found, struct zps_error *error) {
  char key[ZPS_ETCD_KEY_MAX];
  zps_json *answer = NULL;
  leader_key(lead, key);
  zps_err_t err = zps_etcd_call(lead->transport, ZPS_ETCD_RANGE, zps_etcd_range_write(key, NULL, 1, false),
                                call_ms(lead), &answer, error);
  if (!err) err = zps_etcd_range_read(answer, found, error);
  zps_json_unref(answer);
  return err;
}

static zps_err_t grant(struct zps_lead *lead, uint64_t now_ns, struct zps_error *error) {
  zps_json *answer = NULL;
  zps_err_t err = zps_etcd_call(lead->transport, ZPS_ETCD_GRANT, zps_etcd_grant_write(lead->config.lease_s),
                                call_ms(lead), &answer, error);
  if (!err) err = zps_etcd_grant_read(answer, &lead->lease, error);
  zps_json_unref(answer);
  if (!err) lead->lease_until_ns = now_ns + lead->config.lease_s * ZPS_NS_PER_S;
  return err;
}

static zps_err_t take(struct zps_lead *lead, struct zps_etcd_outcome *outcome, struct zps_etcd_range *found,
                      struct zps_error *error) {
  const char *const address = lead->config.address;
  char key[ZPS_ETCD_KEY_MAX];
  zps_json *answer = NULL;
  leader_key(lead, key);
  zps_json *txn =
      zps_etcd_txn_write(zps_json_append(zps_json_array(), zps_etcd_created_is(key, 0)),
                         zps_json_append(zps_json_array(), zps_etcd_put(key, address, strlen(address), lead->lease)),
                         zps_json_append(zps_json_array(), zps_etcd_get(key)));
  zps_err_t err = zps_etcd_call(lead->transport, ZPS_ETCD_TXN, txn, call_ms(lead), &answer, error);
  if (!err) err = zps_etcd_txn_read(answer, outcome, found, 1, error);
  zps_json_unref(answer);
  return err;
}

/* The lease that another one was faster than; etcd ends it itself if this call does not arrive. */
static void drop_lease(struct zps_lead *lead) {
  zps_json *answer = NULL;
  struct zps_error error;
  if (lead->lease && zps_etcd_call(lead->transport, ZPS_ETCD_REVOKE, zps_etcd_lease_write(lead->lease), RESIGN_MS,
                                   &answer, &error) == ZPS_OK)
    zps_json_unref(answer);
  lead->lease = 0;
}

/* There is a lease, and nobody leads, or the answer to a former try was lost. */
static uint64_t campaign(struct zps_lead *lead, uint64_t now_ns) {
  struct zps_etcd_outcome outcome;
  struct zps_etcd_range found = {.n = 0};
  struct zps_error error;
  uint64_t next_ns;
  const zps_err_t err = take(lead, &outcome, &found, &error);
  if (err) {
    /* A refusal is an answer: the lease may be over already. */
    if (err != ZPS_ERR_CONNECT && err != ZPS_ERR_TIMEOUT) lead->lease = 0;
    return etcd_away(lead, now_ns, &error);
  }
  lead->view.away.code = ZPS_OK;
  if (outcome.succeeded) {
    next_ns = begin_to_lead(lead, now_ns, outcome.revision);
  } else if (found.n > 0 && found.kvs[0].lease == lead->lease) {
    next_ns = begin_to_lead(lead, now_ns, found.kvs[0].created);
  } else {
    next_ns = follow(lead, now_ns, &found);
    drop_lease(lead);
  }
  zps_etcd_range_fini(&found);
  return next_ns;
}

static uint64_t step_as_follower(struct zps_lead *lead, uint64_t now_ns) {
  struct zps_etcd_range found = {.n = 0};
  struct zps_error error;
  if (lead->lease && now_ns >= lead->lease_until_ns) lead->lease = 0;
  if (lead->lease) return campaign(lead, now_ns);
  if (look(lead, &found, &error)) return etcd_away(lead, now_ns, &error);
  lead->view.away.code = ZPS_OK;
  const uint64_t next_ns = follow(lead, now_ns, &found);
  const bool is_free = found.n == 0;
  zps_etcd_range_fini(&found);
  if (!is_free) return next_ns;
  if (grant(lead, now_ns, &error)) return etcd_away(lead, now_ns, &error);
  return campaign(lead, now_ns);
}

/* ------------------------------------------------------------ to lead */

static uint64_t lose(struct zps_lead *lead, const char *why) {
  lead->view.state = ZPS_LEAD_LOST;
  zps_fail(&lead->view.away, ZPS_ERR_STALE, "this coordinator leads no longer: %.400s", why);
  return ZPS_NEVER;
}

static uint64_t step_as_leader(struct zps_lead *lead, uint64_t now_ns) {
  zps_json *answer = NULL;
  struct zps_error error;
  uint64_t ttl_s = 0;
  if (now_ns >= lead->view.until_ns)
    return lose(lead, lead->view.away.code ? lead->view.away.text : "its lease in etcd was not prolonged in time");
  const uint64_t left_ms = (lead->view.until_ns - now_ns) / ZPS_NS_PER_MS + 1;
  const uint64_t timeout_ms = left_ms < call_ms(lead) ? left_ms : call_ms(lead);
  zps_err_t err = zps_etcd_call(lead->transport, ZPS_ETCD_KEEPALIVE, zps_etcd_lease_write(lead->lease), timeout_ms,
                                &answer, &error);
  if (!err) err = zps_etcd_keepalive_read(answer, &ttl_s, &error);
  zps_json_unref(answer);
  if (err) return etcd_away(lead, now_ns, &error);
  if (ttl_s == 0) return lose(lead, "etcd has ended its lease");
  lead->view.away.code = ZPS_OK;
  lead->view.until_ns = now_ns + ttl_s * ZPS_NS_PER_S; /* from before the call on */
  return after(now_ns, ttl_s * 1000 / 3);
}

uint64_t zps_lead_step(struct zps_lead *lead, uint64_t now_ns) {
  if (lead->view.state == ZPS_LEAD_FOLLOWS) return step_as_follower(lead, now_ns);
  return lead->view.state == ZPS_LEAD_LEADS ? step_as_leader(lead, now_ns) : ZPS_NEVER;
}

void zps_lead_resign(struct zps_lead *lead) {
  if (lead->view.state == ZPS_LEAD_LOST) return;
  drop_lease(lead);
  lead->view.state = ZPS_LEAD_LOST;
}
