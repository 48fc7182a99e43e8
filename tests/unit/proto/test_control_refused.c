/* Refusals by readers of control messages: each member of each golden line left out, of another type, out of range, too
 * long. A message that is refused leaves nothing behind. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/support/control_again.h"
#include "tests/unit/proto/control_rig.h"

enum { LONG = 5000 };

/* One member, counted from the first, outer ones ahead of inner ones, is left out or replaced. */
struct spoil {
  unsigned at, target;
  const char *with;   /* JSON; NULL: left out */
  const char *inside; /* the member of the body that is being copied */
  char path[100];     /* of the target: "fabric.provider", "members.rank"; empty while it was not found */
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
  const char *const outer = spoil->inside;
  zps_json *const to = spoil->to;
  if (spoil->at++ == spoil->target) {
    snprintf(spoil->path, sizeof spoil->path, "%s%s%s", outer ? outer : "", outer ? "." : "", key);
    if (spoil->with) spoil->to = zps_json_set(to, key, replacement(spoil));
    return;
  }
  spoil->inside = key;
  spoil->to = zps_json_set(to, key, copy_of(spoil, value));
  spoil->inside = outer;
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

/* Members that may be left out, by message and path. */
static const char *const optional[] = {
    "server.register draining",
    "server.register fabric.weak_keys",
    "job.join rack",
    "job.join places",
    "job.join answer places",
    "job.open places",
    "job.join answer checksums",
    "job.open checksums",
    "job.open since",
    "job.open weight",
    "job.join token",
    "job.close reason",
    "job.stats tensors.*",
    "job.stats kept_bytes",
    "job.stats corrupt",
    "job.stats forged",
    "tensor.register codec",
    "tensor.register values",
    "tensor.register block_bits",
    "tensor.register ranks",
    "tensor.register scheme",
    "tensor.register scheme.*",
    "tensor.open codec",
    "tensor.open values",
    "tensor.open ranks",
    "tensor.report *",
    "tensor.plan whole",
    "job.failed *",
    "tensor.register group",
    "tensor.register partitioner",
    "tensor.register hash_k",
    "tensor.register hash_r1",
    "tensor.register hash_r2",
    "tensor.register keep_zero_rows",
    "tensor.register staleness",
    "tensor.open partitioner",
    "tensor.open hash_k",
    "tensor.open hash_r1",
    "tensor.open hash_r2",
    "tensor.open staleness",
    "job.next rack",
    "job.next token",
    "job.next generation",
    "job.next answer generation",
    "job.leave next",
    "job.map drained",
    "job.suspect servers",
    "job.suspect why",
};
static const char *const required[] = {"job.stats tensors.tensor",    "job.stats tensors.done",
                                       "tensor.register scheme.name", "tensor.report job_id",
                                       "tensor.report tensor",        "tensor.report step",
                                       "job.failed job_id",           "tensor.register scheme.of_width"};
/* Members that may be left out, but not with others beside them. */
static const char *const entangled[] = {"tensor.register scheme.levels"};
/* Values of other types that are taken: texts that may be any, values that count as left out, and any number. */
static const char *const lenient[] = {"job.close reason",
                                      "rank.gone code",
                                      "rank.gone text",
                                      "job.memory memory",
                                      "tensor.plan whole",
                                      "job.failed *",
                                      "tensor.report *",
                                      "server.register draining",
                                      "server.register fabric.weak_keys",
                                      "job.leave next",
                                      "job.join answer checksums",
                                      "job.open checksums"};
static const char *const strict[] = {"tensor.report job_id", "tensor.report tensor", "tensor.report step",
                                     "tensor.report scheme", "job.failed job_id"};
/* Numbers that may be any. */
static const char *const unbounded[] = {"job.stats tensors.done", "job.stats tensors.step", "job.next step",
                                        "job.next answer step"};

static bool is_among(const char *message, const char *path, const char *const *list, size_t n) {
  char name[200];
  const int len = snprintf(name, sizeof name, "%s %s", message, path);
  assert_true(len > 0 && (size_t)len < sizeof name);
  for (size_t i = 0; i < n; i++) {
    const size_t prefix = strcspn(list[i], "*");
    if (list[i][prefix] ? strncmp(list[i], name, prefix) == 0 : strcmp(list[i], name) == 0) return true;
  }
  return false;
}
#define AMONG(message, path, list) is_among(message, path, list, sizeof list / sizeof list[0])

static unsigned n_refused;

/* False: there are not so many members. */
static bool spoil_one(const char *message, const zps_json *body, unsigned target, const char *with,
                      const char *list_of) {
  struct spoil spoil = {.target = target, .with = with};
  struct zps_error error = {.text = ""};
  zps_json *written;
  zps_json *spoiled = copy_of(&spoil, body);
  assert_non_null(spoiled);
  const bool found = spoil.path[0] != '\0';
  const zps_err_t err = found ? control_again(message, spoiled, &written, &error) : ZPS_OK;
  zps_json_unref(spoiled);
  if (!found) return false;
  const bool may_pass = with ? AMONG(message, spoil.path, lenient) && !AMONG(message, spoil.path, strict)
                             : AMONG(message, spoil.path, optional) && !AMONG(message, spoil.path, required);
  if (err == ZPS_OK) {
    zps_json_unref(written);
    if (!may_pass && !(list_of && AMONG(message, spoil.path, unbounded)))
      fail_msg("%s: %s %s was taken", message, spoil.path, with ? with : "left out");
    return true;
  }
  n_refused++;
  assert_null(written);
  if (!error.text[0]) fail_msg("%s: %s is refused without a word", message, spoil.path);
  if (!with && may_pass && !AMONG(message, spoil.path, entangled))
    fail_msg("%s: %s left out: %s", message, spoil.path, error.text);
  return true;
}

static void spoil_all(const char *line, const char *message, const zps_json *body) {
  static const char *const wrong[] = {"null", "-1", "\"\\u0007\"", "{}", "1e300", "true", "[{}]"};
  (void)line;
  for (unsigned target = 0; spoil_one(message, body, target, NULL, NULL); target++) {
    for (unsigned i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
      if (strcmp(message, "tensor.report") == 0 && i == 5) continue; /* "waits": true */
      assert_true(spoil_one(message, body, target, wrong[i], NULL));
    }
    assert_true(spoil_one(message, body, target, "4611686018427387904", "unbounded"));
    char longest[LONG + 3];
    memset(longest, 'a', sizeof longest);
    longest[0] = longest[LONG + 1] = '"';
    longest[LONG + 2] = '\0';
    assert_true(spoil_one(message, body, target, longest, NULL));
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
  "\"j\", \"world\": 1, \"epoch\": 1, " members                                                                \
  ", \"members\": [{\"rank\": 0, \"host\": \"h\", \"pid\": 1, \"address\": \"01\"}]}"
#define SCHEME(members) "{" TENSOR ", \"scheme\": {\"name\": \"x\", " members "}}"
  static const struct {
    const char *message, *body, *text;
  } cases[] = {
      {"job.peers answer", "{\"ranks\": []}", "member 'ranks' has 0 elements, want one for each of 2 ranks"},
      {"job.join answer",
       "{\"job_id\": \"0x5\", \"seed\": \"0x5\", \"link_secret\": \"00112233445566778899aabbccddeeff\", \"epoch\": 1, "
       "\"heartbeat_ms\": 1, \"dead_ms\": 2, \"servers\": []}",
       "member 'servers' has 0 elements, want 1 to 1024"},
      {"job.open",
       "{\"job_id\": \"0x5\", \"seed\": \"0x5\", \"link_secret\": \"00112233445566778899aabbccddeeff\", "
       "\"name\": \"j\", \"world\": 2, \"epoch\": 1, \"servers\": 1, "
       "\"server\": 0, "
       "\"members\": []}",
       "member 'members' has 0 elements, want one for each of 2 ranks"},
      {"job.open", OPEN("\"servers\": 2, \"places\": 1, \"server\": 0"), "member 'places' is 1, want 2 to 1024"},
      {"job.open", OPEN("\"servers\": 2, \"places\": 1025, \"server\": 0"), "member 'places' is 1025, want 2 to 1024"},
      {"job.open", OPEN("\"servers\": 2, \"places\": 4, \"server\": 2"), "member 'server' is 2, want 0 to 1"},
      {"job.open", OPEN("\"servers\": 2, \"places\": 4, \"since\": 3, \"server\": 4"),
       "member 'server' is 4, want 0 to 3"},
      {"job.open",
       "{\"job_id\": \"0x5\", \"seed\": \"0x5\", \"link_secret\": \"00112233445566778899aabbccddeeff\", "
       "\"name\": \"j\", \"world\": 1, \"epoch\": 1, \"servers\": 1, \"server\": 0, "
       "\"members\": [{\"rank\": 1, \"host\": \"h\", \"pid\": 1, \"address\": \"01\"}]}",
       "member 'members[0].rank' is 1, want 0"},
      {"job.open",
       "{\"job_id\": \"0x5\", \"seed\": \"0x5\", \"link_secret\": \"00112233445566778899aabbccddeeff\", "
       "\"name\": \"j\", \"world\": 1, \"epoch\": 1, \"servers\": 1, \"server\": 0, "
       "\"members\": [{\"rank\": 0, \"pid\": 1, \"address\": \"01\"}]}",
       "member 'members[0].host' is missing, want a string"},
      {"tensor.register", "{" TENSOR ", \"codec\": 7}",
       "member 'codec' is no string, want auto, paper or coo (left out: auto)"},
      {"tensor.register", "{" TENSOR ", \"codec\": \"small\"}",
       "member 'codec' is 'small', want auto, paper or coo (left out: auto)"},
      {"tensor.register", "{" TENSOR ", \"values\": \"f8\"}",
       "member 'values' is 'f8', want raw, bf16, f16, qsgd2, qsgd4 or qsgd8 (left out: raw)"},
      {"tensor.register", "{" TENSOR ", \"partitioner\": \"fnv\"}",
       "member 'partitioner' is 'fnv', want stratified, murmur or hierarchical (left out: stratified)"},
      {"tensor.register", "{" TENSOR ", \"hash_k\": 17}", "member 'hash_k' is 17, want 1 to 16"},
      {"tensor.register", "{" TENSOR ", \"staleness\": 32}", "member 'staleness' is 32, want 1 to 31"},
      {"tensor.register", "{" TENSOR ", \"hash_r1\": 4294967297}",
       "member 'hash_r1' is 4294967297, want 1 to 4294967296"},
      {"tensor.register", "{" TENSOR ", \"keep_zero_rows\": 2}", "member 'keep_zero_rows' is 2, want 1 to 1"},
      {"tensor.register", "{" TENSOR ", \"ranks\": []}", "member 'ranks' has 0 elements, want 1 to 4096"},
      {"tensor.register", "{" TENSOR ", \"ranks\": [4096]}", "member 'ranks[0]' is 4096, want 0 to 4095"},
      {"tensor.register", "{" TENSOR ", \"scheme\": \"ring\"}", "member 'scheme' is a string, want an object"},
      {"tensor.register", SCHEME("\"bits\": 3"), "scheme: member 'bits' is 3, want 2, 4 or 8"},
      {"tensor.register", SCHEME("\"allgather\": \"tree\""),
       "member 'scheme.allgather' is 'tree', want auto, direct or doubling"},
      {"tensor.register", SCHEME("\"delta\": 1.5"), "member 'scheme.delta' is no number over 0 and at most 1"},
      {"tensor.register", SCHEME("\"delta\": \"1\""), "member 'scheme.delta' is no number over 0 and at most 1"},
      {"tensor.register", SCHEME("\"levels\": [2, 2], \"level_algorithms\": [\"ring\"]"),
       "member 'scheme.level_algorithms' has 1 elements, want one for each of 2 levels"},
      {"tensor.register", SCHEME("\"levels\": [2, 2], \"level_algorithms\": [\"ring\", \"star\"]"),
       "member 'scheme.level_algorithms[1]' is 'star', want auto, ring or doubling"},
      {"tensor.register", SCHEME("\"chunks\": 65"), "member 'scheme.chunks' is 65, want 2 to 64"},
      {"tensor.register", SCHEME("\"levels\": []"), "member 'scheme.levels' has 0 elements, want 1 to 16"},
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
      {"tensor.plan", "{\"job_id\": \"0x5\", \"tensor\": 0, \"runs\": []}",
       "member 'runs' has 0 elements, want 1 to 64"},
      {"job.stats", "{\"job_id\": \"0x5\", \"tensors\": [{\"tensor\": 0, \"done\": 1, \"rounds\": -1}]}",
       "member 'rounds' is -1, want 0 to 9007199254740992"},
      {"job.suspect", "{\"job_id\": \"0x5\", \"servers\": [1024], \"why\": \"reset\"}",
       "member 'servers[0]' is 1024, want 0 to 1023"},
      {"job.suspect", "{\"job_id\": \"0x5\", \"servers\": [1, 0], \"why\": \"reset\"}",
       "member 'servers' has 0 after 1, want ascending positions"},
      {"job.map", "{\"job_id\": \"0x5\", \"epoch\": 1, \"lost\": []}",
       "member 'lost' is empty, and there is no 'joined': one must name servers"},
      {"job.map",
       "{\"job_id\": \"0x5\", \"epoch\": 1, \"lost\": [], \"joined\": [{\"position\": 1, \"since\": 0, \"name\": "
       "\"a\", "
       "\"address\": \"01\"}]}",
       "member 'joined[0].since' is 0, want 1 to 4294967295"},
      {"job.map",
       "{\"job_id\": \"0x5\", \"epoch\": 1, \"lost\": [], \"joined\": [{\"position\": 1, \"since\": 1, \"name\": "
       "\"a\", "
       "\"address\": \"01\"}, {\"position\": 1, \"since\": 1, \"name\": \"a\", \"address\": \"01\"}]}",
       "member 'joined' has 1 after 1, want ascending positions"},
      {"job.map", "{\"job_id\": \"0x5\", \"epoch\": 1, \"lost\": [1024]}", "member 'lost[0]' is 1024, want 0 to 1023"},
      {"job.map", "{\"job_id\": \"0x5\", \"epoch\": 1, \"lost\": [2, 2]}",
       "member 'lost' has 2 after 2, want ascending positions"},
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

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_each_member), cmocka_unit_test(test_sentences)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
