#include "server/shard/member.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/shard/job.h"
#include "server/shard/shard_impl.h"
#include "server/shard/tensor.h"

zps_err_t zps_member_connect(struct zps_member *member, const struct zps_member_spec *spec, struct zps_error *error) {
  struct zps_job *job = member->job;
  struct zps_shard *shard = job->shard;
  zps_err_t code = zps_net_peer_add(shard->net, spec->addr, spec->addr_len, member, &member->peer, error);
  if (code != ZPS_OK) return code;
  zps_net_peer_keep(member->peer, &job->keep);
  code = zps_tags_get(&shard->tags, member, &member->tag);
  member->has_tag = code == ZPS_OK;
  if (code == ZPS_OK) code = zps_bulk_peer_add(shard->bulk, member->peer, &member->bulk);
  if (code == ZPS_OK) zps_bulk_peer_join(member->bulk, &job->reads);
  const struct zps_net_info *const here = zps_net_info(shard->net);
  if (code == ZPS_OK)
    code = zps_link_create(shard->net, member->peer,
                           &(struct zps_link_ends){.job = job->id,
                                                   .epoch = job->epoch,
                                                   .self = job->server | ZPS_WIRE_SRC_SERVER,
                                                   .other = member->rank,
                                                   .tag = member->tag,
                                                   .secret = &job->secret,
                                                   .server = here->addr,
                                                   .server_len = here->addr_len,
                                                   .since = job->since,
                                                   .bulk = member->bulk,
                                                   .counts = zps_engine_link_counts(shard->engine)},
                           &member->link);
  if (code != ZPS_OK)
    return zps_fail(error, code, "job %s: cannot open the link to rank %u: %s", job->name, member->rank,
                    zps_err_str(code));
  zps_link_measure(member->link, false);
  member->is_unheard = job->since > 0;
  return ZPS_OK;
}

void zps_member_disconnect(struct zps_member *member) {
  zps_link_destroy(member->link);
  zps_net_peer_evict(member->peer);
  zps_bulk_peer_remove(member->bulk);
  member->link = NULL;
  member->peer = NULL;
  member->bulk = NULL;
}

void zps_member_fail(struct zps_member *member, zps_err_t code, const char *text) {
  if (!member->link || member->is_failing) return;
  member->is_failing = member->job->shard->any_failing = true;
  member->gone_code = code;
  member->gone_text = strdup(text);
}

void zps_member_send(struct zps_member *member, struct zps_frame *frame) {
  if (!member->link || member->is_failing) return;
  const zps_err_t code = zps_link_send(member->link, frame);
  if (code == ZPS_OK) return;
  char text[120];
  if (code == ZPS_ERR_AGAIN)
    snprintf(text, sizeof text, "it takes no more frames: %u of them wait", ZPS_LINK_QUEUE_MAX);
  else
    snprintf(text, sizeof text, "cannot send it a %s frame: %s", zps_frame_type_name(frame->header.type),
             zps_err_str(code));
  zps_member_fail(member, ZPS_ERR_PEER_LOST, text);
}

struct zps_shard_machine_event zps_member_gone_event(const struct zps_member *member, const struct zps_tensor *tensor,
                                                     uint64_t step) {
  const struct zps_job *job = member->job;
  const bool may_have_sum = member->is_unheard && member->gone_code == ZPS_ERR_CLOSED && step <= tensor->unsure_step;
  if (job->lost != ZPS_SHARD_NO_RANK)
    return (struct zps_shard_machine_event){.type = ZPS_SHARD_GONE,
                                            .rank = member->rank,
                                            .may_have_sum = may_have_sum,
                                            .code = ZPS_ERR_PEER_LOST,
                                            .text = job->lost_text ? job->lost_text : zps_err_str(ZPS_ERR_PEER_LOST),
                                            .blamed = &job->lost,
                                            .n_blamed = 1};
  return (struct zps_shard_machine_event){
      .type = ZPS_SHARD_GONE,
      .rank = member->rank,
      .may_have_sum = may_have_sum,
      .code = member->gone_code,
      .text = member->gone_text ? member->gone_text : zps_err_str(member->gone_code)};
}

void zps_member_fini(struct zps_member *member) {
  zps_member_disconnect(member);
  if (member->has_tag) zps_tags_put(&member->job->shard->tags, member->tag);
  free(member->gone_text);
}
