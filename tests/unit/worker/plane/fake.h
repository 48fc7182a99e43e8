/*
 * Fake servers and ranks for tests of a worker's data plane: each has an endpoint of the in-process fabric and a link
 * to the worker, and sends the messages that the test gives it, right or wrong. All of them are driven by the test's
 * own thread, whenever it waits for something (UNTIL), so what they do comes in the order of the test's lines.
 */
#ifndef ZPS_TESTS_WORKER_PLANE_FAKE_H
#define ZPS_TESTS_WORKER_PLANE_FAKE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/clock.h"
#include "common/net/net.h"
#include "common/session/checks.h"
#include "common/session/link.h"
#include "proto/wire.h"
#include "tests/support/patience.h"

/* A frame that came, with its bytes. One of another epoch than the fake's link lives in is dropped. */
struct fake_frame {
  struct fake_frame *next;
  struct zps_frame frame;
  _Alignas(8) uint8_t bytes[];
};

struct fake_memory;

struct fake {
  struct zps_net *net; /* NULL: it is dead */
  struct zps_net_peer *peer;
  struct zps_link *link; /* NULL: the worker is not known yet */
  struct zps_checks *checks;
  bool changes;
  bool is_taking; /* the frames of a message: its link makes progress at the end of the turn */
  uint64_t job;
  uint32_t self;
  uint32_t since; /* a server: the epoch with which it came into the job, or 0; before fake_connect() */
  /* Takes frames as they come, and frees them; NULL: they are kept for fake_take(). */
  void (*on_frame)(struct fake *fake, struct fake_frame *frame);
  void *ctx;
  struct fake_frame *frames, **frames_tail;
  struct fake_memory *memories;
  struct fake *next;
};

/* True on a thread while it does a fake's work: only the worker runs short of memory. */
extern _Thread_local bool fake_at_work;

/* Of the fabric of fakes that are opened from here on; NULL: the in-process one. */
extern const char *fake_provider;
void fake_open(struct fake *fake);
/* `self`: a rank, or a server's number with ZPS_WIRE_SRC_SERVER. */
void fake_connect(struct fake *fake, const struct zps_net_info *worker, uint64_t job, uint32_t self, uint32_t rank);
/* The fake dies: sends to it fail from here on, and its memory cannot be read. A second call does nothing. */
void fake_close(struct fake *fake);

void fakes_turn(void); /* all that are open */
void fakes_rest(void); /* a little while, where nothing has happened */
#define UNTIL(condition)                                                           \
  do {                                                                             \
    struct patience patience_ = {0};                                               \
    for (fakes_turn(); !(condition); fakes_turn()) {                               \
      if (patience_is_over(&patience_)) fail_msg("never reached: %s", #condition); \
      fakes_rest();                                                                \
    }                                                                              \
  } while (0)

/* For fake_take(), where on_frame() does not want it. */
void fake_keep(struct fake *fake, struct fake_frame *frame);
/* Whether a frame of this type and round came that the test has not taken. */
bool fake_has(const struct fake *fake, enum zps_frame_type type, uint32_t tensor, uint64_t step);
/* Waits for it and takes it; the caller frees it. */
struct fake_frame *fake_take(struct fake *fake, enum zps_frame_type type, uint32_t tensor, uint64_t step);
/* Waits for it, takes it and frees it. */
void fake_expect(struct fake *fake, enum zps_frame_type type, uint32_t tensor, uint64_t step);
/* Waits for an ABORT with this code, whose text has `text` in it; the ranks that it names are 1 << rank, if < 32. */
uint32_t fake_expect_abort(struct fake *fake, uint32_t tensor, uint64_t step, zps_err_t code, const char *text);

void fake_send(struct fake *fake, struct zps_frame *frame);
/* Bytes as they are, past the link. */
void fake_send_bytes(struct fake *fake, const void *bytes, size_t len);
void fake_done(struct fake *fake, uint32_t tensor, uint64_t step);
void fake_abort(struct fake *fake, uint32_t tensor, uint64_t step, zps_err_t code, const char *text);
/* Copies bytes to registered memory, which lives as long as the fake, for `slice` to name. */
void fake_expose(struct fake *fake, const void *bytes, uint64_t len_bytes, struct zps_slice *slice);
/* What it exposes from here on it announces with the checksum of other bytes, as if the memory had changed since. */
void fake_changes(struct fake *fake);
/* The payload that the worker has announced, whose checksum is right, if it has one. ZPS_OK or how the read went. */
zps_err_t fake_read(struct fake *fake, const struct zps_slice *slice, void *to);

#endif
