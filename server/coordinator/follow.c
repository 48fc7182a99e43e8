/*
 * One of several coordinators over one state in etcd: while another one leads it sends clients there; when it leads it
 * loads the state, and goes on as after a new start.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "server/coordinator/coordinator_impl.h"
#include "server/state/lead.h"
#include "server/state/store_etcd.h"

#define ZPS_LOG_COMPONENT "coordinator"
#include "common/base/log.h"

struct zps_coordinator_following {
  struct zps_coordinator *coordinator;
  struct zps_lead_thread *lead;
  struct zps_etcd_transport *transport; /* the store's, until this coordinator leads */
  char *prefix, leader[ZPS_LEADER_MAX];
  bool leads;
  uv_async_t changed;
};

static void destroy(struct zps_coordinator_following *following) {
  if (following->transport) following->transport->ops->close(following->transport);
  free(following->prefix);
  free(following);
}

/* ------------------------------------------------------------ what clients are told */

static void refuse(struct zps_coordinator *coordinator, const char *why, const char *leader) {
  zps_rpc_listener_refuse(coordinator->listener, why, leader);
  zps_rpc_listener_refuse(coordinator->socket, why, leader);
  zps_rpc_listener_refuse(coordinator->own, why, leader);
}

static void tell(struct zps_coordinator *coordinator, bool leads, const char *text) {
  if (coordinator->config.on_leads) coordinator->config.on_leads(coordinator->config.ctx, leads, text);
}

static void follow(struct zps_coordinator_following *following, const struct zps_lead_view *view) {
  char why[300];
  if (view->away.code)
    snprintf(why, sizeof why, "this coordinator does not lead, and etcd, which knows who does, does not answer: %.180s",
             view->away.text);
  else if (view->leader[0])
    snprintf(why, sizeof why, "this coordinator does not lead: the one at %.200s does", view->leader);
  else
    snprintf(why, sizeof why, "this coordinator does not lead, and no other one does yet");
  refuse(following->coordinator, why, view->away.code ? "" : view->leader);
  if (view->leader[0] && strcmp(following->leader, view->leader) != 0)
    zps_log_info("the coordinator at %s leads: following it", view->leader);
  snprintf(following->leader, sizeof following->leader, "%s", view->leader);
  tell(following->coordinator, false, why);
}

/* ------------------------------------------------------------ to lead */

static zps_err_t load(struct zps_coordinator_following *following, uint64_t revision, struct zps_error *error) {
  struct zps_coordinator *const coordinator = following->coordinator;
  const struct zps_store_etcd_config config = {.transport = following->transport,
                                               .prefix = following->prefix,
                                               .revision = revision,
                                               .timeout_ms = coordinator->config.dead_ms / 2};
  struct zps_store_backend *backend;
  const zps_err_t err = zps_store_etcd_open(&config, &backend, error);
  if (err) return err;
  following->transport = NULL;
  return zps_coordinator_state_load(coordinator, backend, error);
}

static void begin_to_lead(struct zps_coordinator_following *following, uint64_t revision) {
  struct zps_coordinator *const coordinator = following->coordinator;
  struct zps_error error;
  if (load(following, revision, &error)) {
    zps_coordinator_break(coordinator, &error);
    return;
  }
  following->leads = true;
  refuse(coordinator, NULL, NULL);
  zps_log_info("this coordinator leads");
  tell(coordinator, true, "this coordinator leads");
}

static void on_changed(uv_async_t *changed) {
  struct zps_coordinator_following *following = changed->data;
  struct zps_lead_view view;
  if (following->coordinator->broken || !following->lead) return;
  zps_lead_look(following->lead, &view);
  if (view.state == ZPS_LEAD_LOST)
    zps_coordinator_break(following->coordinator, &view.away);
  else if (view.state == ZPS_LEAD_FOLLOWS)
    follow(following, &view);
  else if (!following->leads)
    begin_to_lead(following, view.revision);
}

void zps_coordinator_check_lease(struct zps_coordinator *coordinator) {
  const struct zps_coordinator_following *const following = coordinator->following;
  struct zps_lead_view view;
  struct zps_error error;
  if (!following || !following->leads || coordinator->broken || coordinator->closing) return;
  zps_lead_look(following->lead, &view);
  if (view.state == ZPS_LEAD_LEADS && zps_clock_ns() < view.until_ns) return;
  error = view.away;
  if (!error.code || view.state == ZPS_LEAD_LEADS)
    zps_fail(&error, ZPS_ERR_STALE, "this coordinator leads no longer: %.400s",
             view.away.code ? view.away.text : "its lease in etcd was not prolonged in time");
  zps_coordinator_break(coordinator, &error);
}

/* ------------------------------------------------------------ life */

/* From the thread that follows. */
static void wake(void *ctx) {
  struct zps_coordinator_following *following = ctx;
  uv_async_send(&following->changed);
}

static void on_closed(uv_handle_t *handle) {
  destroy(handle->data);
}

static zps_err_t start_thread(struct zps_coordinator_following *following, const struct zps_coordinator_etcd *etcd,
                              struct zps_error *error) {
  const struct zps_lead_config config = {
      .prefix = following->prefix, .address = etcd->advertise, .lease_s = etcd->lease_s};
  struct zps_etcd_transport *transport;
  const zps_err_t err = zps_etcd_http_open(&etcd->access, &transport, error);
  return err ? err : zps_lead_start(&config, transport, wake, following, &following->lead, error);
}

zps_err_t zps_coordinator_follow(struct zps_coordinator *coordinator, uv_loop_t *loop,
                                 const struct zps_coordinator_etcd *etcd, struct zps_error *error) {
  struct zps_coordinator_following *following = calloc(1, sizeof *following);
  if (!following) return zps_fail(error, ZPS_ERR_NOMEM, "no memory for the coordinator");
  following->coordinator = coordinator;
  following->prefix = strdup(etcd->prefix);
  zps_err_t err = following->prefix ? ZPS_OK : zps_fail(error, ZPS_ERR_NOMEM, "no memory for the coordinator");
  if (!err) err = zps_etcd_http_open(&etcd->access, &following->transport, error);
  if (!err && uv_async_init(loop, &following->changed, on_changed) < 0)
    err = zps_fail(error, ZPS_ERR_NOMEM, "no memory for the coordinator");
  if (err) {
    destroy(following);
    return err;
  }
  following->changed.data = following;
  refuse(coordinator, "this coordinator does not lead, and has not heard yet who does", "");
  err = start_thread(following, etcd, error);
  if (err) {
    uv_close((uv_handle_t *)&following->changed, on_closed);
    return err;
  }
  coordinator->following = following;
  return ZPS_OK;
}

void zps_coordinator_follow_stop(struct zps_coordinator *coordinator) {
  struct zps_coordinator_following *const following = coordinator->following;
  if (!following) return;
  zps_lead_stop(following->lead);
  following->lead = NULL;
  uv_close((uv_handle_t *)&following->changed, on_closed);
  coordinator->following = NULL;
}
