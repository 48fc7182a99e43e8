/* Refusals by readers of control messages: each member of each golden line left out, of another type, just outside the
 * bounds of its table, too long. A message that is refused leaves nothing behind. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/control/rpc.h"
#include "proto/control_change.h"
#include "proto/control_stats.h"
#include "tests/support/control_again.h"
#include "tests/unit/proto/control_rig.h"

enum { LONG = 5000 };

/* One member, counted from the first, outer ones ahead of inner ones, is left out or replaced. */
struct spoil {
  unsigned at, target;
  const char *with; /* JSON; NULL: left out */
  char inside[100]; /* Path of the object that is being copied, "fabric." */
  char path[160];   /* of the target: "fabric.provider", "view.places.state"; empty while it was not found */
  zps_json *to;
};

static zps_json *copy_of(struct spoil *spoil, const zps_json *value);

static zps_json *replacement(const struct spoil *spoil) {
  char text[LONG + 20];
  zps_json *object;
  const int len = snprintf(text, sizeof text, "{\"v\": %s}", spoil->with);
  assert_int_equal(zps_json_parse(text, (size_t)len, &object, NULL), ZPS_OK);
  zps_json *value = zps_json_copy(zps_json_get(object, "v"));
  zps_json_unref(object);
  return value;
}

static void visit(void *ctx, const char *key, const zps_json *value) {
  struct spoil *spoil = ctx;
  const size_t outer = strlen(spoil->inside);
  zps_json *const to = spoil->to;
  if (spoil->at++ == spoil->target) {
    snprintf(spoil->path, sizeof spoil->path, "%s%.50s", spoil->inside, key);
    if (spoil->with) spoil->to = zps_json_set(to, key, replacement(spoil));
    return;
  }
  snprintf(spoil->inside + outer, sizeof spoil->inside - outer, "%s.", key);
  spoil->to = zps_json_set(to, key, copy_of(spoil, value));
  spoil->inside[outer] = '\0';
}

static zps_json *copy_of(struct spoil *spoil, const zps_json *value) {
  zps_json *const to = spoil->to;
  zps_json *copy;
  if (zps_json_is_object(value)) {
    spoil->to = zps_json_object();
    zps_json_each(value, visit, spoil);
    copy = spoil->to;
  } else if (zps_json_is_array(value)) {
    copy = zps_json_array();
    for (size_t i = 0; i < zps_json_array_len(value); i++)
      copy = zps_json_append(copy, copy_of(spoil, zps_json_at(value, i)));
  } else {
    copy = zps_json_copy(value);
  }
  spoil->to = to;
  return copy;
}

/* A member in the tables. */
struct found {
  const struct zps_field *field; /* NULL: another reader has it. */
  bool may_be_left_out;
};

static struct found find(const struct zps_fields *fields, const char *path) {
  const size_t len = strcspn(path, ".");
  struct found found = {.field = NULL};
  for (size_t i = 0; i < fields->n_fields && !found.field; i++) {
    const struct zps_field *const field = &fields->fields[i];
    const bool is_it = field->key && strlen(field->key) == len && memcmp(field->key, path, len) == 0;
    /* The reader of job.stats leaves its rows to another table. */
    const struct zps_fields *const part = field->type == ZPS_FIELD_OTHER ? &zps_control_growth : field->part;
    if (field->type == ZPS_FIELD_PART) {
      found = find(part, path);
      found.may_be_left_out |= field->optional && found.field == &part->fields[0];
    } else if (is_it && path[len]) {
      return part ? find(part, path + len + 1) : found;
    } else if (is_it) {
      found.field = field;
      found.may_be_left_out = field->optional || field->type == ZPS_FIELD_FLAG || field->type == ZPS_FIELD_REAL;
    }
  }
  return found;
}

/* A member that is left out of these may be refused: a rule between members wants it. */
static const char *const entangled[] = {"job.join answer view.places.state", "job.join answer view.places.name",
                                        "job.next answer view.places.name",  "job.open view.places.state",
                                        "job.open view.places.since",        "tensor.register scheme.levels",
                                        "tensor.register scheme.of_width",   "tensor.open block_bits"};

static bool is_entangled(const char *message, const char *path) {
  char name[200];
  snprintf(name, sizeof name, "%s %s", message, path);
  for (unsigned i = 0; i < sizeof entangled / sizeof entangled[0]; i++)
    if (strcmp(entangled[i], name) == 0) return true;
  return false;
}

/* job.failed counts whatever it says, and the costs of tensor.report are all there or ignored. */
static bool is_lenient(const char *message, const char *path) {
  return (strcmp(message, "job.failed") == 0 && strcmp(path, "job_id") != 0) ||
         (strcmp(message, "tensor.report") == 0 && strncmp(path, "costs", strlen("costs")) == 0);
}

static unsigned n_refused;

/* One member left out or replaced. False: there are not so many. */
struct spoiled {
  const char *message;
  const zps_json *body;
  unsigned target;
  char path[160];
  struct found found;
  zps_err_t err;
  struct zps_error error;
};

static bool read_spoiled(struct spoiled *spoiled, const char *with) {
  struct spoil spoil = {.target = spoiled->target, .with = with};
  zps_json *written = NULL;
  zps_json *const body = copy_of(&spoil, spoiled->body);
  assert_non_null(body);
  if (spoil.path[0]) spoiled->err = control_again(spoiled->message, body, &written, &spoiled->error);
  zps_json_unref(body);
  if (!spoil.path[0]) return false;
  strcpy(spoiled->path, spoil.path);
  spoiled->found = find(control_message(spoiled->message)->fields, spoil.path);
  if (spoiled->err) {
    n_refused++;
    assert_null(written);
    if (!spoiled->error.text[0]) fail_msg("%s: %s is refused without a word", spoiled->message, spoiled->path);
  }
  zps_json_unref(written);
  return true;
}

static void is_refused(struct spoiled *spoiled, const char *with, const char *text) {
  assert_true(read_spoiled(spoiled, with));
  if (is_lenient(spoiled->message, spoiled->path)) return;
  if (!spoiled->err) fail_msg("%s: %s was taken as %.40s", spoiled->message, spoiled->path, with);
  if (!strstr(spoiled->error.text, text))
    fail_msg("%s: %s as %.40s: '%s', not '%s'", spoiled->message, spoiled->path, with, spoiled->error.text, text);
}

static void refuse_number(struct spoiled *spoiled, uint64_t number, const char *text) {
  char with[60];
  snprintf(with, sizeof with, spoiled->found.field->many ? "[%llu]" : "%llu", (unsigned long long)number);
  is_refused(spoiled, with, text);
}

/* Just outside the bounds of the table. */
static void spoil_bounds(struct spoiled *spoiled) {
  const struct zps_field *const field = spoiled->found.field;
  const uint64_t max = field->max ? field->max : field->size == sizeof(uint64_t) ? UINT64_MAX : UINT32_MAX;
  char text[200];
  if (field->many && field->per) {
    is_refused(spoiled, "[]", "has 0 elements, want one for each of ");
    return;
  }
  if (field->many && field->n_min > 0) {
    snprintf(text, sizeof text, "has 0 elements, want %u to %u", field->n_min, field->n_max);
    is_refused(spoiled, "[]", text);
  }
  if (field->type == ZPS_FIELD_NUMBER) {
    snprintf(text, sizeof text, ", want %llu to %llu", (unsigned long long)field->min, (unsigned long long)max);
    if (field->min > 0) refuse_number(spoiled, field->min - 1, text);
    if (max < UINT64_MAX) refuse_number(spoiled, max + 1, text);
  }
  if ((field->type == ZPS_FIELD_TEXT || field->type == ZPS_FIELD_NAME) && field->min > 0)
    is_refused(spoiled, "\"\"", "has 0 bytes, want ");
}

static void spoil_types(struct spoiled *spoiled) {
  static const char *const wrong[] = {"null", "-1", "\"\\u0007\"", "{}", "1e300", "true", "[{}]"};
  const enum zps_field_type type = spoiled->found.field->type;
  const bool is_any = type == ZPS_FIELD_FLAG || type == ZPS_FIELD_REAL;
  for (unsigned i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
    const bool is_text = wrong[i][0] == '"' && (type == ZPS_FIELD_STRING || type == ZPS_FIELD_CODE);
    if (is_any || is_text)
      assert_true(read_spoiled(spoiled, wrong[i]) && !spoiled->err);
    else
      is_refused(spoiled, wrong[i], "");
  }
  char longest[LONG + 3];
  memset(longest, 'a', sizeof longest);
  longest[0] = longest[LONG + 1] = '"';
  longest[LONG + 2] = '\0';
  if (!is_any && type != ZPS_FIELD_STRING && type != ZPS_FIELD_CODE) is_refused(spoiled, longest, "");
}

static void spoil_all(const char *line, const char *message, const zps_json *body) {
  struct spoiled spoiled = {.message = message, .body = body};
  (void)line;
  for (; read_spoiled(&spoiled, NULL); spoiled.target++) {
    if (is_lenient(message, spoiled.path)) continue;
    if (!spoiled.found.field) fail_msg("%s: the tables have no %s", message, spoiled.path);
    if (!spoiled.err && !spoiled.found.may_be_left_out) fail_msg("%s: %s left out was taken", message, spoiled.path);
    if (spoiled.err && spoiled.found.may_be_left_out && !is_entangled(message, spoiled.path))
      fail_msg("%s: %s left out: %s", message, spoiled.path, spoiled.error.text);
    spoil_types(&spoiled);
    spoil_bounds(&spoiled);
  }
}

static void test_each_member(void **state) {
  (void)state;
  static const char *const files[] = {"server", "job", "stats", "tensor", "plan", "next"};
  for (unsigned i = 0; i < sizeof files / sizeof files[0]; i++) assert_true(control_golden(files[i], spoil_all) > 0);
  assert_true(n_refused > 1000);
}

/* Faults that no single member shows. */
static void test_sentences(void **state) {
  (void)state;
#define TENSOR                                                                                             \
  "\"job_id\": \"0x5\", \"name\": \"w\", \"rows\": 9, \"width\": 1, \"dtype\": \"f32\", \"op\": \"sum\", " \
  "\"partitions\": 2"
#define OPEN(members)                                                                                          \
  "{\"job_id\": \"0x5\", \"seed\": \"0x5\", \"link_secret\": \"00112233445566778899aabbccddeeff\", \"name\": " \
  "\"j\", \"world\": 1, " members ", \"members\": [{\"rank\": 0, \"host\": \"h\", \"pid\": 1, \"address\": \"01\"}]}"
#define VIEW(epoch, places) "\"view\": {\"epoch\": " epoch ", \"began\": 2, \"places\": [" places "]}"
#define SCHEME(members) "{" TENSOR ", \"scheme\": {\"name\": \"x\", " members "}}"
  static const struct {
    const char *message, *body, *text;
  } cases[] = {
      {"job.open", OPEN("\"server\": 0, " VIEW("1", "{}")),
       "view: member 'began' is 2, want 1 to 1, as there are places"},
      {"job.open", OPEN("\"server\": 2, " VIEW("1", "{}, {}")), "member 'server' is 2, want 0 to 1"},
      {"job.open", OPEN("\"server\": 1, " VIEW("1", "{}, {\"state\": \"free\"}")),
       "member 'view.places[1].state' is 'free', want in or joining, as it is this server's"},
      {"job.open", OPEN("\"server\": 1, " VIEW("1", "{}, {\"state\": \"leaving\"}")),
       "member 'view.places[1].state' is 'leaving', want in or joining, as it is this server's"},
      {"job.open", OPEN("\"server\": 1, " VIEW("1", "{}, {\"state\": \"joining\"}")),
       "view: member 'places[1].since' is missing, want the server's epoch"},
      {"job.open", OPEN("\"server\": 0, " VIEW("1", "{}, {\"state\": \"lost\"}")),
       "member 'view.places[1].state' is 'lost', want free, in, leaving or joining (left out: in)"},
      {"job.open",
       "{\"job_id\": \"0x5\", \"seed\": \"0x5\", \"link_secret\": \"00112233445566778899aabbccddeeff\", "
       "\"name\": \"j\", \"world\": 1, \"server\": 0, " VIEW(
           "1", "{}, {}") ", "
                          "\"members\": [{\"rank\": 1, \"host\": \"h\", \"pid\": 1, \"address\": \"01\"}]}",
       "member 'members[0].rank' is 1, want 0"},
      {"job.open",
       "{\"job_id\": \"0x5\", \"seed\": \"0x5\", \"link_secret\": \"00112233445566778899aabbccddeeff\", "
       "\"name\": \"j\", \"world\": 1, \"server\": 0, " VIEW(
           "1", "{}, {}") ", "
                          "\"members\": [{\"rank\": 0, \"pid\": 1, \"address\": \"01\"}]}",
       "member 'members[0].host' is missing, want a string"},
      {"job.join answer",
       "{\"job_id\": \"0x5\", \"seed\": \"0x5\", \"link_secret\": \"00112233445566778899aabbccddeeff\", "
       "\"heartbeat_ms\": 1, \"dead_ms\": 1, " VIEW("1", "{\"name\": \"a\", \"address\": \"01\"}, {}") "}",
       "member 'view.places[1].address' is missing, want that of its server"},
      {"tensor.register", "{" TENSOR ", \"codec\": 7}",
       "member 'codec' is no string, want auto, paper or coo (left out: auto)"},
      {"tensor.register", "{" TENSOR ", \"codec\": \"small\"}",
       "member 'codec' is 'small', want auto, paper or coo (left out: auto)"},
      {"tensor.register", "{" TENSOR ", \"values\": \"f8\"}",
       "member 'values' is 'f8', want raw, bf16, f16, qsgd2, qsgd4 or qsgd8 (left out: raw)"},
      {"tensor.register", "{" TENSOR ", \"partitioner\": \"fnv\"}",
       "member 'partitioner' is 'fnv', want stratified, murmur or hierarchical (left out: stratified)"},
      {"tensor.register", SCHEME("\"bits\": 3"), "scheme: member 'bits' is 3, want 2, 4 or 8"},
      {"tensor.register", SCHEME("\"allgather\": \"tree\""),
       "member 'scheme.allgather' is 'tree', want auto, direct or doubling"},
      {"tensor.register", SCHEME("\"delta\": 1.5"), "member 'scheme.delta' is no number over 0 and at most 1"},
      {"tensor.register", SCHEME("\"delta\": \"1\""), "member 'scheme.delta' is no number over 0 and at most 1"},
      {"tensor.register", SCHEME("\"levels\": [2, 2], \"level_algorithms\": [\"ring\"]"),
       "member 'scheme.level_algorithms' has 1 elements, want one for each of 2 levels"},
      {"tensor.register", SCHEME("\"levels\": [2, 2], \"level_algorithms\": [\"ring\", \"star\"]"),
       "member 'scheme.level_algorithms[1]' is 'star', want auto, ring or doubling"},
      {"tensor.register", SCHEME("\"choices\": []"), "member 'scheme.choices' is empty, want names"},
      {"tensor.register", SCHEME("\"choices\": [\"fast\"]"), "there is no scheme 'fast'; there are: balanced"},
      {"tensor.register", SCHEME("\"choices\": [7]"), "member 'scheme.choices' is an integer, want a string"},
      {"tensor.open", "{" TENSOR ", \"tensor\": 0, \"block_bits\": 0, \"owners\": [0]}",
       "member 'owners' has 1 elements, want one for each of 2 partitions"},
      {"tensor.register answer", "{\"tensor\": 0, \"partitions\": 1, \"block_bits\": 0, \"owners\": [3]}",
       "member 'owners[0]' is 3, want 0 to 2"},
      {"tensor.report", "{\"job_id\": \"0x5\", \"tensor\": 0, \"step\": \"0x0\", \"sketch\": \"7\"}",
       "a sketch is a limit and ascending hashes below it, 16 digits each"},
      {"tensor.report", "{\"job_id\": \"0x5\", \"tensor\": 0, \"step\": \"0x0\", \"scheme\": \"auto\"}",
       "member 'scheme' is 'auto', want balanced, "},
      {"job.stats", "{\"job_id\": \"0x5\", \"tensors\": [{\"tensor\": 0, \"done\": 1, \"rounds\": -1}]}",
       "member 'rounds' is -1, want 0 to 9007199254740992"},
      {"job.suspect", "{\"job_id\": \"0x5\", \"servers\": [1, 0], \"why\": \"reset\"}",
       "member 'servers' has 0 after 1, want ascending positions"},
      {"job.view", "{\"job_id\": \"0x5\", " VIEW("1", "") "}", "member 'view.places' has 0 elements, want 1 to 1024"},
      {"job.view", "{\"job_id\": \"0x5\", " VIEW("4", "{}, {\"since\": 5}") "}",
       "view: member 'places[1].since' is 5, want at most 4, the epoch"},
      {"job.mapped", "{\"job_id\": \"0x5\", \"epoch\": 1, \"tensors\": [{\"tensor\": 1, \"steps\": []}]}",
       "steps of a job: member 'tensors[0].steps' has 0 elements, want 1 to 128"},
      {"job.replay", "{\"job_id\": \"0x5\", \"epoch\": 1, \"tensors\": [{\"tensor\": 1, \"steps\": [7]}]}",
       "steps of a job: member 'tensors[0].steps[0]' is an integer, want a string"},
      {"no.such", "{}", "there is no message 'no.such'"},
  };
  for (unsigned i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    struct zps_error error = {.text = ""};
    zps_json *body, *written;
    assert_int_equal(zps_json_parse(cases[i].body, strlen(cases[i].body), &body, &error), ZPS_OK);
    assert_int_not_equal(control_again(cases[i].message, body, &written, &error), ZPS_OK);
    /* "job.open: " comes first, but where a table is of two messages, or of none. */
    const char *const first = strstr(cases[i].text, "steps of a job") ? "" : cases[i].message;
    const bool is_none = strcmp(first, "no.such") == 0;
    char expected[400];
    snprintf(expected, sizeof expected, "%s%s%s", is_none ? "" : first, is_none || !first[0] ? "" : ": ",
             cases[i].text);
    if (strncmp(error.text, expected, strlen(expected)) != 0) fail_msg("'%s', not '%s'", error.text, expected);
    zps_json_unref(body);
  }
}

/* ------------------------------------------------------------ sets of steps */

/* The largest set is one line, and all of its steps are read again. */
static void test_largest_set_of_steps(void **state) {
  (void)state;
  struct zps_job_steps set = {.job_id = UINT64_MAX, .epoch = UINT32_MAX}, again;
  struct zps_error error;
  for (uint32_t t = 0; t < ZPS_MAP_TENSORS_MAX; t++)
    for (uint32_t i = 0; i < ZPS_MAP_ALL_STEPS_MAX / ZPS_MAP_TENSORS_MAX; i++)
      assert_int_equal(zps_job_steps_add(&set, UINT32_MAX - t, UINT64_MAX - i), ZPS_OK);
  assert_int_equal(zps_job_steps_add(&set, UINT32_MAX, 1), ZPS_ERR_INVALID);
  assert_int_equal(zps_job_steps_add(&set, UINT32_MAX, UINT64_MAX), ZPS_OK); /* It has that one. */
  zps_json *const params = zps_control_job_steps_write(&set);
  char *const line = zps_json_dump(params);
  assert_non_null(line);
  assert_true(strlen(line) + 100 < ZPS_RPC_LINE_MAX); /* the call around it */
  free(line);
  assert_int_equal(zps_control_job_steps_read(params, &again, &error), ZPS_OK);
  assert_true(again.n_all == ZPS_MAP_ALL_STEPS_MAX && again.n_tensors == ZPS_MAP_TENSORS_MAX);
  zps_json_unref(params);
  zps_job_steps_fini(&set);
  zps_job_steps_fini(&again);
}

/* A tensor more, each with the most steps that one may have. */
static void test_too_many_steps_of_all(void **state) {
  (void)state;
  enum { TENSORS = ZPS_MAP_ALL_STEPS_MAX / ZPS_MAP_STEPS_MAX + 1 };
  static struct zps_tensor_steps tensors[TENSORS];
  uint64_t steps[ZPS_MAP_STEPS_MAX];
  struct zps_job_steps set = {.n_tensors = TENSORS, .tensors = tensors}, read;
  struct zps_error error;
  for (uint32_t i = 0; i < ZPS_MAP_STEPS_MAX; i++) steps[i] = i;
  for (uint32_t t = 0; t < TENSORS; t++)
    tensors[t] = (struct zps_tensor_steps){.tensor = t, .n_steps = ZPS_MAP_STEPS_MAX, .steps = steps};
  zps_json *const params = zps_control_job_steps_write(&set);
  assert_int_equal(zps_control_job_steps_read(params, &read, &error), ZPS_ERR_PROTOCOL);
  assert_non_null(strstr(error.text, "tensor 1024: its steps and those before are more than 131072"));
  zps_json_unref(params);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_each_member), cmocka_unit_test(test_sentences),
                                     cmocka_unit_test(test_largest_set_of_steps),
                                     cmocka_unit_test(test_too_many_steps_of_all)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
