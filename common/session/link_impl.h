/* Inside of a link, for link.c (frames and credits) and resume.c (connections). */
#ifndef ZPS_SESSION_LINK_IMPL_H
#define ZPS_SESSION_LINK_IMPL_H

#include "common/session/early.h"
#include "common/session/link.h"
#include "common/session/mac.h"
#include "common/session/unacked.h"

enum {
  RECEIVES = ZPS_LINK_CREDITS + 1, /* the last one is for CREDIT frames alone, so that two full ends cannot lock up */
  POSTED = RECEIVES + ZPS_LINK_SPARE,
  CREDITS_DUE_MANY = ZPS_LINK_CREDITS / 2, /* worth a frame of their own */
  QUESTIONS = 3,                           /* the first takes as long as it takes the fabric to connect */
};
_Static_assert(RECEIVES == ZPS_UNACKED_MAX && RECEIVES == ZPS_EARLY_MAX, "a message has a frame or more");

/* An encoded frame that waits; its sequence number and credits are stamped when it leaves. */
struct waiting {
  struct waiting *next;
  size_t len;
  bool is_offered; /* its payloads */
  uint8_t data[];
};

struct zps_link {
  struct zps_net *net;
  struct zps_net_peer *peer;
  uint64_t job;
  uint32_t epoch, self, tag;
  uint64_t tx_seq, rx_seq;    /* of the next frame */
  uint32_t peer_tag;          /* the tag that the peer wants its short headers to carry */
  bool has_peer_tag;          /* peer_tag is known */
  bool is_patient;            /* of the two ends, the one that ends a silent connection later */
  bool introduced;            /* a long header of this epoch is sent or queued, so short ones may follow */
  bool rx_introduced;         /* a long header of rx_epoch has come */
  uint32_t rx_epoch;          /* the epoch of the short headers, which name none */
  unsigned tx_credits;        /* receives the peer has free for us */
  unsigned rx_due;            /* receives free again for the peer that it has not been told of */
  bool must_answer;           /* the peer wants its credits back at once */
  bool may_ask;               /* the peer receives */
  bool is_to_ask;             /* for a sign of life */
  unsigned n_questions;       /* left to ask */
  unsigned ahead;             /* credits that come back before the answer, and with it; 0: no question is out */
  uint64_t asked_ns;          /* when it left */
  struct zps_bulk_peer *bulk; /* told of the answers; NULL: none */
  struct waiting *queue, **queue_tail;
  unsigned n_queue;
  struct zps_mac_key tx_key, rx_key;
  uint64_t message_seq;            /* of its first frame */
  struct zps_wire_message message; /* frames that leave together, at the end of a turn or when no more fit */
  struct zps_unacked unacked;
  struct zps_early early;
  uint64_t n_signs; /* messages that only a living peer sends */
  struct {
    bool is_cut;             /* the fabric has lost the connection */
    bool is_held;            /* nothing leaves until the peer has said what it expects */
    bool asks;               /* a question is to leave */
    uint32_t answers;        /* the peer's question that is to be answered; 0: none */
    uint32_t n_sent, n_come; /* RESUME frames, the latter as the peer counts */
    uint32_t question;       /* the number of the latest question; 0: it is answered */
    uint64_t question_seq;   /* what the peer would expect if all had come that was sent before it */
    uint32_t answered;       /* the number of the latest question that any answer names */
    bool is_wrong;           /* the peer has named impossible numbers, as in `wrong` */
    struct zps_frame_resume wrong;
    bool is_counted;    /* this end has ended the connection, and counted that */
    unsigned n_renewed; /* connections, since the peer was heard */
    uint64_t renew_ns;  /* when to connect */
  } resume;
  struct {
    bool is_heard;                  /* a new message of the peer's has come */
    bool is_answered;               /* an answer has come: it only says that the peer is there */
    bool has_lost;                  /* an answer says that frames are missing */
    unsigned n_asked, n_answered;   /* since the link got on, or frames were missing */
    uint64_t oldest;                /* first frame that was not confirmed then */
    uint64_t landed;                /* bytes that were read from it */
    uint64_t look_ns;               /* ZPS_NEVER: it is not waited for */
    uint64_t since_ns, patience_ns; /* since when it is silent; how long its connection may stay */
  } silence;
  struct {
    uint64_t seq, since_ns; /* the frame that was missing at the last look, and since when */
  } gap;
  struct zps_link_counts *counts;
};

/* Sends the RESUME frame that is due, if one is. */
void zps_link_send_resume(struct zps_link *link);

#endif
