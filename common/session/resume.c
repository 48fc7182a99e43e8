/* Lost connections and silent peers. */
#include "common/session/link_impl.h"

#include "common/base/clock.h"

/* Silence of a peer that is waited for. Each answer doubles the time to the next question, until one says that frames
 * are missing: these leave again, and may be lost again. A connection that is ended costs the reads in flight, so that
 * it has the more patience. Ends that acted at the same time would end each other's new connections. */
#define ASK_NS (100 * ZPS_NS_PER_MS)
#define ASK_MOST_NS ZPS_NS_PER_S
enum { ASK_DOUBLES = 3 };
#define END_NS ZPS_NS_PER_S
/* A look that is so late says that this process was stopped, and what the peer sent may wait to be read. */
#define LATE_NS ZPS_NS_PER_S
/* A peer sends again what it is asked for. One that does not for so long breaks the protocol. Of a silence within this
 * time no more than COUNTED_NS counts, as long as the longest pause between two questions. */
#define GAP_NS (5 * ZPS_NS_PER_S)
#define COUNTED_NS ZPS_NS_PER_S
/* Between attempts to connect: doubled each time. */
#define RENEW_NS (10 * ZPS_NS_PER_MS)
#define RENEW_MOST_NS (100 * ZPS_NS_PER_MS)
enum { RENEW_DOUBLES = 5 };

/* The first frame that has never left in a message. */
static uint64_t end_of_sent(const struct zps_link *link) {
  return link->message.n_frames > 0 ? link->message_seq : link->tx_seq;
}

/* A peer takes messages as a whole, so that it can lack or have no other frame than the first of one. A RESUME that is
 * late may name frames that were confirmed meanwhile. */
static bool may_be_named(const struct zps_link *link, uint64_t seq) {
  const uint64_t end = end_of_sent(link), oldest = zps_unacked_oldest(&link->unacked, end);
  return seq < oldest || (seq < end && zps_unacked_begins(&link->unacked, seq));
}

static bool is_possible(const struct zps_link *link, const struct zps_frame_resume *resume, uint64_t expects) {
  if (expects > end_of_sent(link) || resume->answers > link->resume.n_sent) return false;
  if (expects < end_of_sent(link) && !may_be_named(link, expects)) return false;
  for (unsigned i = 0; i < ZPS_EARLY_MAX - 1; i++)
    if ((resume->early >> i & 1) && !may_be_named(link, expects + 1 + i)) return false;
  return true;
}

/* The peer has all frames before `expects`. It answers our question: what it lacks of the frames that had left before
 * is lost. */
static void answer(struct zps_link *link, const struct zps_frame_resume *resume, uint64_t expects) {
  const unsigned n = zps_unacked_lose(&link->unacked, expects, resume->early, link->resume.question_seq);
  link->resume.question = 0;
  link->resume.n_renewed = 0;
  link->resume.is_held = false;
  if (n == 0) return;
  link->silence.has_lost = true;
  if (link->counts) link->counts->resent += n;
}

void zps_link_resume(struct zps_link *link, const struct zps_frame *frame) {
  const struct zps_frame_resume *const resume = &frame->u.resume;
  const int32_t behind = (int32_t)((uint32_t)link->tx_seq - resume->expects);
  const uint64_t expects = link->tx_seq - (uint64_t)behind;
  if (behind < 0 || (uint64_t)behind > link->tx_seq || !is_possible(link, resume, expects)) {
    link->resume.is_wrong = true;
    link->resume.wrong = *resume;
    return;
  }
  if (resume->answers > link->resume.answered) {
    link->resume.answered = resume->answers;
    link->silence.is_answered = true;
    link->n_signs++;
  }
  zps_unacked_confirm(&link->unacked, expects);
  if (resume->answers != 0 && resume->answers == link->resume.question) answer(link, resume, expects);
  if (!resume->asks) return;
  link->resume.answers = frame->header.seq;
  /* A peer that asks has heard nothing: what it lacks may be lost, or under way. */
  if (behind > 0 && link->resume.question == 0) link->resume.asks = true;
}

/* Not of the sequence: it costs no credit, and does not wait behind frames that do. */
void zps_link_send_resume(struct zps_link *link) {
  const bool asks = link->resume.asks;
  if (link->resume.is_cut || (!asks && link->resume.answers == 0)) return;
  struct zps_frame frame = {.header = {.type = ZPS_FRAME_RESUME,
                                       .job = link->job,
                                       .epoch = link->epoch,
                                       .src = link->self,
                                       .tag = link->tag,
                                       .seq = link->resume.n_sent + 1},
                            .u.resume = {.expects = (uint32_t)link->rx_seq,
                                         .answers = link->resume.answers,
                                         .asks = asks,
                                         .early = zps_early_bits(&link->early, link->rx_seq)}};
  uint8_t data[ZPS_WIRE_LONG_BYTES + 16 + ZPS_WIRE_MAC_BYTES];
  size_t len;
  if (zps_wire_encode(&frame, data, sizeof data - ZPS_WIRE_MAC_BYTES, &len) != ZPS_OK) return;
  zps_mac_make(&link->tx_key, data, len, frame.header.seq, data + len);
  const zps_err_t code = zps_net_send(link->peer, data, len + ZPS_WIRE_MAC_BYTES);
  if (code == ZPS_ERR_PEER_LOST) zps_link_cut(link);
  if (code != ZPS_OK) return;
  link->resume.n_sent++;
  link->resume.answers = 0;
  if (!asks) return;
  link->resume.asks = false;
  link->resume.question = link->resume.n_sent;
  const struct zps_unacked_message *const unsent = zps_unacked_next(&link->unacked);
  link->resume.question_seq = unsent ? unsent->seq : end_of_sent(link);
}

bool zps_link_settles(struct zps_link *link) {
  if (!zps_link_is_through(link)) return false;
  if (link->unacked.n == 0) return true;
  if (link->resume.question == 0) link->resume.asks = true;
  return false;
}

bool zps_link_cut(struct zps_link *link) {
  if (link->resume.is_cut) return false;
  link->resume.is_cut = true;
  link->resume.renew_ns = 0;
  link->ahead = link->n_questions = 0; /* the path is not measured by an answer that is sent again */
  if (link->bulk) zps_bulk_peer_hold(link->bulk);
  return link->resume.n_renewed == 0;
}

/* Returns when to try. */
static uint64_t renew(struct zps_link *link, uint64_t now_ns) {
  const unsigned n = link->resume.n_renewed;
  if (!link->resume.is_cut) return ZPS_NEVER;
  if (link->resume.renew_ns == 0)
    link->resume.renew_ns = now_ns + (n == 0 ? 0 : n < RENEW_DOUBLES ? RENEW_NS << (n - 1) : RENEW_MOST_NS);
  if (now_ns < link->resume.renew_ns) return link->resume.renew_ns;
  zps_net_peer_renew(link->peer);
  if (link->bulk) zps_bulk_peer_go_on(link->bulk);
  if (link->counts && n == 0 && !link->resume.is_counted) link->counts->reconnects++;
  link->resume.is_counted = false;
  link->resume.is_cut = false;
  link->resume.is_held = link->resume.asks = true;
  link->resume.n_renewed++;
  return ZPS_NEVER;
}

static bool is_awaited(const struct zps_link *link) {
  return link->unacked.n > 0 || link->message.n_frames > 0 || link->resume.is_held ||
         (link->bulk && zps_bulk_peer_waits(link->bulk));
}

/* Messages and reads say that the peer lives, not that it has ours, nor that none of its own is missing. */
static bool gets_on(struct zps_link *link, bool has_landed) {
  const uint64_t oldest = zps_unacked_oldest(&link->unacked, link->tx_seq);
  const bool is_stuck =
      (link->unacked.n > 0 && oldest == link->silence.oldest) || (link->early.n > 0 && link->gap.seq == link->rx_seq);
  link->silence.oldest = oldest;
  return (link->silence.is_heard || has_landed) && !is_stuck;
}

/* The peer lives. A peer that was stopped could not send again what is missing: that time hardly counts. */
static void end_silence(struct zps_link *link, uint64_t now_ns, uint64_t counted_ns) {
  const uint64_t silent_ns = now_ns - link->silence.since_ns;
  if (silent_ns > counted_ns) link->gap.since_ns += silent_ns - counted_ns;
  if (link->gap.since_ns > now_ns) link->gap.since_ns = now_ns;
  link->silence.since_ns = now_ns;
}

/* Looks for silence. Returns when to look next. */
static uint64_t look(struct zps_link *link, uint64_t now_ns, bool waits) {
  const uint64_t landed = link->bulk ? zps_bulk_peer_landed(link->bulk) : 0;
  const bool has_landed = landed != link->silence.landed;
  const bool is_new = gets_on(link, has_landed) || link->silence.look_ns == ZPS_NEVER || link->silence.has_lost;
  const bool is_late = !is_new && now_ns > link->silence.look_ns + LATE_NS;
  if (is_new || is_late || has_landed || link->silence.is_heard || link->silence.is_answered)
    end_silence(link, now_ns, is_late ? 0 : COUNTED_NS);
  /* A peer that answers is not getting on yet. It may stop and go on again and again, and each end of its connection
   * disturbs others. */
  if (is_new || is_late) link->silence.patience_ns = link->is_patient ? 2 * END_NS : END_NS;
  if (is_new) {
    link->silence.n_asked = link->silence.n_answered = 0;
    link->silence.look_ns = now_ns + ASK_NS;
    link->resume.is_counted = link->resume.is_counted && link->resume.is_cut;
  }
  if (link->silence.is_answered && link->silence.n_answered < ASK_DOUBLES) link->silence.n_answered++;
  link->silence.landed = landed;
  link->silence.is_heard = link->silence.is_answered = link->silence.has_lost = false;
  if (!waits && !is_awaited(link)) return link->silence.look_ns = ZPS_NEVER;
  if (now_ns < link->silence.look_ns) return link->silence.look_ns;
  if (!link->resume.is_cut && now_ns - link->silence.since_ns >= link->silence.patience_ns) {
    link->silence.patience_ns *= 2;
    zps_net_peer_cut(link->peer);
    if (link->counts && link->resume.n_renewed == 0) link->counts->reconnects++;
    link->resume.is_counted = true;
  }
  link->resume.asks = true;
  link->silence.n_asked++;
  const uint64_t pause_ns = 2 * ASK_NS << link->silence.n_answered;
  return link->silence.look_ns = now_ns + (pause_ns < ASK_MOST_NS ? pause_ns : ASK_MOST_NS);
}

/* Returns when a frame that is missing will have been so for too long. */
static uint64_t look_for_gap(struct zps_link *link, uint64_t now_ns) {
  if (link->early.n == 0 || link->gap.seq != link->rx_seq) {
    link->gap.seq = link->rx_seq;
    link->gap.since_ns = now_ns;
  }
  const uint64_t end_ns = link->gap.since_ns + GAP_NS;
  return link->early.n > 0 && now_ns < end_ns ? end_ns : ZPS_NEVER;
}

/* The peer has spoken since a frame has been missing for too long. While it has not, its silence counts. */
static bool has_gap(const struct zps_link *link) {
  return link->early.n > 0 && link->silence.since_ns >= link->gap.since_ns + GAP_NS;
}

uint64_t zps_link_tick(struct zps_link *link, uint64_t now_ns, bool waits) {
  const uint64_t renew_ns = renew(link, now_ns), look_ns = look(link, now_ns, waits || link->early.n > 0);
  const uint64_t gap_ns = look_for_gap(link, now_ns), next_ns = renew_ns < look_ns ? renew_ns : look_ns;
  return gap_ns < next_ns ? gap_ns : next_ns;
}

zps_err_t zps_link_check(const struct zps_link *link, uint64_t now_ns, uint64_t dead_ns, struct zps_error *error) {
  const struct zps_frame_resume *const wrong = &link->resume.wrong;
  if (link->resume.is_wrong)
    return zps_fail(error, ZPS_ERR_PROTOCOL,
                    "RESUME frame expects frame %u, has early 0x%x, answers %u: no message that was sent begins with "
                    "one of these frames, or none of the %u questions has that number",
                    wrong->expects, wrong->early, wrong->answers, link->resume.n_sent);
  if (has_gap(link))
    return zps_fail(error, ZPS_ERR_PROTOCOL, "frame %u has not come, and %u messages behind it have",
                    (uint32_t)link->rx_seq, link->early.n);
  if (dead_ns == 0 || link->silence.look_ns == ZPS_NEVER || link->silence.n_asked == 0) return ZPS_OK;
  if (now_ns < link->silence.since_ns + dead_ns) return ZPS_OK;
  return zps_fail(error, ZPS_ERR_PEER_LOST, "nothing has come for %.1f s, though it was asked for",
                  (double)(now_ns - link->silence.since_ns) / (double)ZPS_NS_PER_S);
}
