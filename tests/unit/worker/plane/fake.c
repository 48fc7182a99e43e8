#include "tests/unit/worker/plane/fake.h"

#include <stdio.h>

#include "tests/support/fabrics/loop.h"
#include "tests/support/link_take.h"

_Thread_local bool fake_at_work;
const char *fake_provider;

struct fake_memory {
  struct fake_memory *next;
  struct zps_net_mem mem;
  _Alignas(16) uint8_t bytes[];
};

static struct fake *fakes;

/* ------------------------------------------------------------ what comes */

void fake_keep(struct fake *fake, struct fake_frame *frame) {
  frame->next = NULL;
  *fake->frames_tail = frame;
  fake->frames_tail = &frame->next;
}

static void on_frame(struct fake *fake, const void *bytes, size_t len) {
  struct zps_error error = {.text = ""};
  struct fake_frame *kept = malloc(sizeof *kept + len);
  assert_non_null(kept);
  memcpy(kept->bytes, bytes, len);
  if (zps_wire_decode(kept->bytes, len, &kept->frame, &error) != ZPS_OK) fail_msg("%s", error.text);
  const zps_err_t code = zps_link_received(fake->link, &kept->frame.header, &error);
  if (code != ZPS_OK && code != ZPS_ERR_STALE) fail_msg("%s", error.text);
  if (code == ZPS_ERR_STALE || kept->frame.header.type == ZPS_FRAME_CREDIT)
    free(kept);
  else if (fake->on_frame)
    fake->on_frame(fake, kept);
  else
    fake_keep(fake, kept);
}

static void on_due(void *ctx, const void *data, size_t len) {
  struct zps_wire_frames frames;
  struct zps_error error = {.text = ""};
  zps_wire_frames_begin(&frames, data, len);
  for (;;) {
    const void *frame;
    size_t frame_len;
    if (zps_wire_frames_next(&frames, &frame, &frame_len, &error) != ZPS_OK) fail_msg("%s", error.text);
    if (!frame) return;
    on_frame(ctx, frame, frame_len);
  }
}

static void on_message(void *ctx, const void *data, size_t len) {
  struct fake *const fake = ctx;
  if (!fake->link) fail_msg("a frame came before the worker was known");
  const bool was_taking = fake->is_taking; /* a read that a frame asks for takes messages meanwhile */
  fake->is_taking = true;
  if (link_take(fake->link, data, len, on_due, fake) == ZPS_LINK_FORGED) fail_msg("it is not the worker's");
  fake->is_taking = was_taking;
}

static void on_peer_error(void *ctx, struct zps_net_peer *peer, zps_err_t code, const char *text) {
  (void)ctx;
  (void)peer;
  (void)code;
  (void)text; /* the worker is gone: at the end of a test */
}

/* ------------------------------------------------------------ life */

void fake_open(struct fake *fake) {
  const struct zps_net_config config = {.provider = fake_provider ? fake_provider : "loop",
                                        .interface = fake_provider ? "lo" : NULL,
                                        .max_msg = ZPS_WIRE_MESSAGE_MAX,
                                        .n_recv = 8,
                                        .connect_timeout_ms = PATIENCE_NEVER_MS};
  const struct zps_net_handler handler = {.ctx = fake, .on_message = on_message, .on_peer_error = on_peer_error};
  struct zps_error error = {.text = ""};
  *fake = (struct fake){.next = fakes};
  fake->frames_tail = &fake->frames;
  if (zps_net_open(&config, &handler, &fake->net, &error) != ZPS_OK) fail_msg("%s", error.text);
  fakes = fake;
}

void fake_connect(struct fake *fake, const struct zps_net_info *worker, uint64_t job, uint32_t self, uint32_t rank) {
  struct zps_error error = {.text = ""};
  fake->job = job;
  fake->self = self;
  if (zps_net_peer_add(fake->net, worker->addr, worker->addr_len, fake, &fake->peer, &error) != ZPS_OK)
    fail_msg("%s", error.text);
  const struct zps_secret secret = {{0}};
  const struct zps_net_info *const here = zps_net_info(fake->net);
  const struct zps_link_ends ends = {.job = job,
                                     .epoch = 1,
                                     .self = self,
                                     .other = rank,
                                     .secret = &secret,
                                     .server = here->addr,
                                     .server_len = self & ZPS_WIRE_SRC_SERVER ? here->addr_len : 0,
                                     .since = fake->since};
  assert_int_equal(zps_link_create(fake->net, fake->peer, &ends, &fake->link), ZPS_OK);
  if (zps_checks_create(&secret, job, NULL, NULL, NULL, &fake->checks, &error) != ZPS_OK) fail_msg("%s", error.text);
}

void fake_close(struct fake *fake) {
  if (!fake->net) return;
  struct fake **at = &fakes;
  while (*at != fake) at = &(*at)->next;
  *at = fake->next;
  zps_link_destroy(fake->link);
  zps_checks_unref(fake->checks);
  while (fake->memories) {
    struct fake_memory *memory = fake->memories;
    fake->memories = memory->next;
    zps_net_mem_release(fake->net, &memory->mem);
    free(memory);
  }
  zps_net_close(fake->net);
  while (fake->frames) {
    struct fake_frame *frame = fake->frames;
    fake->frames = frame->next;
    free(frame);
  }
  fake->net = NULL;
  fake->link = NULL;
  fake->checks = NULL;
}

void fakes_turn(void) {
  const bool was_at_work = fake_at_work;
  fake_at_work = true;
  for (struct fake *fake = fakes; fake; fake = fake->next) {
    zps_net_progress(fake->net);
    if (!fake->link) continue;
    zps_link_tick(fake->link, zps_clock_ns(), false);
    zps_link_progress(fake->link);
  }
  fake_at_work = was_at_work;
}

void fakes_rest(void) {
  nanosleep(&(struct timespec){.tv_nsec = ZPS_NS_PER_MS / 10}, NULL);
}

/* ------------------------------------------------------------ taken */

static bool is_of(const struct zps_frame *frame, enum zps_frame_type type, uint32_t tensor, uint64_t step) {
  if (frame->header.type != type) return false;
  switch (type) {
    case ZPS_FRAME_DONE:
      return frame->u.done.tensor == tensor && frame->u.done.step == step;
    case ZPS_FRAME_ABORT:
      return frame->u.abort.tensor == tensor && frame->u.abort.step == step;
    default:
      return frame->u.round.tensor == tensor && frame->u.round.step == step;
  }
}

bool fake_has(const struct fake *fake, enum zps_frame_type type, uint32_t tensor, uint64_t step) {
  for (const struct fake_frame *frame = fake->frames; frame; frame = frame->next) {
    if (is_of(&frame->frame, type, tensor, step)) return true;
  }
  return false;
}

struct fake_frame *fake_take(struct fake *fake, enum zps_frame_type type, uint32_t tensor, uint64_t step) {
  UNTIL(fake_has(fake, type, tensor, step));
  struct fake_frame **at = &fake->frames;
  while (!is_of(&(*at)->frame, type, tensor, step)) at = &(*at)->next;
  struct fake_frame *frame = *at;
  *at = frame->next;
  if (!*at) fake->frames_tail = at;
  return frame;
}

void fake_expect(struct fake *fake, enum zps_frame_type type, uint32_t tensor, uint64_t step) {
  free(fake_take(fake, type, tensor, step));
}

uint32_t fake_expect_abort(struct fake *fake, uint32_t tensor, uint64_t step, zps_err_t code, const char *text) {
  struct fake_frame *frame = fake_take(fake, ZPS_FRAME_ABORT, tensor, step);
  const struct zps_frame_abort *abort = &frame->frame.u.abort;
  uint32_t ranks = 0;
  assert_int_equal(abort->code, code);
  if (!strstr(abort->text, text)) fail_msg("told '%s', not '%s'", abort->text, text);
  for (uint32_t i = 0; i < abort->n_ranks; i++) ranks |= abort->ranks[i] < 32 ? 1u << abort->ranks[i] : 0;
  free(frame);
  return ranks;
}

/* ------------------------------------------------------------ said */

void fake_send(struct fake *fake, struct zps_frame *frame) {
  const bool was_at_work = fake_at_work;
  fake_at_work = true;
  assert_int_equal(zps_link_send(fake->link, frame), ZPS_OK);
  if (!fake->is_taking) zps_link_progress(fake->link);
  fake_at_work = was_at_work;
}

void fake_send_bytes(struct fake *fake, const void *bytes, size_t len) {
  const bool was_at_work = fake_at_work;
  fake_at_work = true;
  assert_int_equal(zps_net_send(fake->peer, bytes, len), ZPS_OK);
  fake_at_work = was_at_work;
}

void fake_done(struct fake *fake, uint32_t tensor, uint64_t step) {
  struct zps_frame frame = {.header.type = ZPS_FRAME_DONE, .u.done = {.tensor = tensor, .step = step}};
  fake_send(fake, &frame);
}

void fake_abort(struct fake *fake, uint32_t tensor, uint64_t step, zps_err_t code, const char *text) {
  struct zps_frame frame = {.header.type = ZPS_FRAME_ABORT, .u.abort = {.tensor = tensor, .step = step, .code = code}};
  snprintf(frame.u.abort.text, sizeof frame.u.abort.text, "%s", text);
  fake_send(fake, &frame);
}

void fake_expose(struct fake *fake, const void *bytes, uint64_t len_bytes, struct zps_slice *slice) {
  struct zps_error error = {.text = ""};
  const bool was_at_work = fake_at_work;
  fake_at_work = true;
  struct fake_memory *memory = malloc(sizeof *memory + len_bytes);
  assert_non_null(memory);
  memcpy(memory->bytes, bytes, len_bytes);
  if (zps_net_mem_register(fake->net, memory->bytes, len_bytes, &memory->mem, &error) != ZPS_OK)
    fail_msg("%s", error.text);
  memory->next = fake->memories;
  fake->memories = memory;
  slice->sum = zps_checks_sum(fake->checks, bytes, len_bytes);
  if (fake->changes) memory->bytes[len_bytes / 2] ^= 1;
  fake_at_work = was_at_work;
  slice->is_inline = false;
  slice->len_bytes = len_bytes;
  slice->addr = memory->mem.addr;
  slice->key = memory->mem.key;
}

void fake_changes(struct fake *fake) {
  fake->changes = true;
}

struct fetch {
  struct zps_net_read read;
  bool is_done;
  zps_err_t code;
};

static void fetched(struct zps_net_read *read, zps_err_t code) {
  struct fetch *fetch = read->ctx;
  fetch->is_done = true;
  fetch->code = code;
}

zps_err_t fake_read(struct fake *fake, const struct zps_slice *slice, void *to) {
  if (slice->is_inline) {
    if (slice->len_bytes > 0) memcpy(to, slice->data, slice->len_bytes);
    return ZPS_OK;
  }
  struct zps_error error = {.text = ""};
  struct zps_net_mem mem;
  const bool was_at_work = fake_at_work;
  fake_at_work = true;
  if (zps_net_mem_register(fake->net, to, slice->len_bytes, &mem, &error) != ZPS_OK) fail_msg("%s", error.text);
  struct fetch fetch = {.read = {.local = to,
                                 .mem = &mem,
                                 .len = slice->len_bytes,
                                 .addr = slice->addr,
                                 .key = slice->key,
                                 .done = fetched,
                                 .ctx = &fetch}};
  assert_int_equal(zps_net_read(fake->peer, &fetch.read), ZPS_OK);
  struct patience patience = {0};
  while (!fetch.is_done && !patience_is_over(&patience)) zps_net_progress(fake->net);
  assert_true(fetch.is_done);
  zps_net_mem_release(fake->net, &mem);
  const uint64_t sum = zps_checks_sum(fake->checks, to, slice->len_bytes);
  if (fetch.code == ZPS_OK && slice->sum) assert_int_equal(sum, slice->sum);
  fake_at_work = was_at_work;
  return fetch.code;
}
