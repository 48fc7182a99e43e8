#include "tests/fuzz/methods_lines.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/fuzz/must.h"

enum { METHODS = 36, VARIANTS_MAX = 32, LINE_MAX = 8192 };

static const struct methods_method methods[METHODS] = {
    {"server.register", OF_SERVERS, false, NULL},
    {"job.join", OF_RANKS, false, NULL},
    {"tensor.register", OF_RANKS, false, NULL},
    {"job.next", OF_RANKS, false, NULL},
    {"job.resume", OF_RANKS, false, "{\"rank\":0}"},
    {"job.leave", OF_RANKS, false, NULL},
    {"job.peers", OF_RANKS, false, NULL},
    {"job.linked", OF_RANKS, false, NULL},
    {"group.open", OF_RANKS, false, NULL},
    {"group.close", OF_RANKS, false, NULL},
    {"tensor.close", OF_RANKS, false, NULL},
    {"job.memory", OF_RANKS, true, NULL},
    {"job.held", OF_RANKS, true, NULL},
    {"job.suspect", OF_RANKS, true, NULL},
    {"job.mapped", OF_RANKS, true, NULL},
    {"job.stats", OF_RANKS, true, NULL},
    {"tensor.report", OF_RANKS, true, NULL},
    {"server.drain", OF_SERVERS, false, "{}"},
    {"away", OF_SERVERS | OF_RANKS, true, "{}"},
    {"heartbeat", OF_SERVERS | OF_RANKS, true, "{\"stuck_ms\":0}"},
    {"status", OF_ALL, false, "{}"},
    {"members", OF_ALL, false, "{}"},
    {"jobs", OF_ALL, false, "{\"all\":true}"},
    {"tensors", OF_ALL, false, "{}"},
    {"stats", OF_ALL, false, "{}"},
    {"security", OF_ADMINS, false, "{}"},
    {"drain", OF_ADMINS, false, "{\"name\":\"s0\"}"},
    {"undrain", OF_ADMINS, false, "{\"name\":\"s0\"}"},
    {"rebalance", OF_ADMINS, false, "{\"name\":\"train\"}"},
    {"kick", OF_ADMINS, false, "{\"name\":\"train\",\"rank\":0,\"reason\":\"slow\"}"},
    {"job.open", 0, false, NULL},
    {"job.close", 0, false, NULL},
    {"job.view", 0, false, NULL},
    {"tensor.open", 0, false, NULL},
    {"rank.gone", 0, true, NULL},
    {"hello", 0, false, "{\"protocol\":1,\"version\":\"1\",\"role\":\"worker\"}"},
};

static struct {
  unsigned n;
  zps_json *body[VARIANTS_MAX];
} golden[METHODS];

static const char *const others[] = {"0",
                                     "1",
                                     "2",
                                     "3",
                                     "-1",
                                     "64",
                                     "1000",
                                     "4294967295",
                                     "4294967296",
                                     "9007199254740993",
                                     "1e308",
                                     "0.5",
                                     "true",
                                     "false",
                                     "null",
                                     "\"\"",
                                     "\"train\"",
                                     "\"k\"",
                                     "\"s0\"",
                                     "\"s1\"",
                                     "\"g\"",
                                     "\"0x1\"",
                                     "\"0xffffffffffffffff\"",
                                     "[]",
                                     "{}",
                                     "[0]",
                                     "[0,1]",
                                     "[1,0]",
                                     "[[]]",
                                     "\"balanced\"",
                                     "\"auto\"",
                                     "\"ring\"",
                                     "\"\\u0001\\u20ac\"",
                                     "30",
                                     "\"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
                                     "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
                                     "aaaaaaaaaaaaaaaaaaaaaaaaaaa\"",
                                     "[0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20]"};
enum { OTHERS = sizeof others / sizeof others[0] };

static zps_json *parse(const char *text, size_t len) {
  zps_json *value;
  must(zps_json_parse(text, len, &value, NULL) == ZPS_OK);
  return value;
}

static unsigned number_of(const char *name) {
  unsigned i = 0;
  while (i < METHODS && strcmp(methods[i].name, name) != 0) i++;
  return i;
}

static void read_file(const char *name) {
  const char *const top = getenv("ZPS_TOP_SRCDIR");
  char path[1024], line[LINE_MAX];
  snprintf(path, sizeof path, "%s/proto/golden/control/%s.jsonl", top ? top : ".", name);
  FILE *const file = fopen(path, "r");
  if (!file) fprintf(stderr, "cannot open %s: ZPS_TOP_SRCDIR must be the top of the sources\n", path);
  must(file != NULL);
  while (fgets(line, sizeof line, file)) {
    zps_json *const whole = parse(line, strcspn(line, "\n"));
    const unsigned at = number_of(zps_json_opt_str(whole, "message", ""));
    if (at < METHODS && golden[at].n < VARIANTS_MAX)
      golden[at].body[golden[at].n++] = zps_json_copy(zps_json_get(whole, "body"));
    zps_json_unref(whole);
  }
  fclose(file);
}

static void read_all(void) {
  static const char *const files[] = {"server", "job", "next", "tensor", "plan", "stats"};
  for (unsigned i = 0; i < sizeof files / sizeof files[0]; i++) read_file(files[i]);
  for (unsigned i = 0; i < METHODS; i++) {
    must(methods[i].name && (methods[i].body != NULL) == (golden[i].n == 0));
    if (methods[i].body) golden[i].body[golden[i].n++] = parse(methods[i].body, strlen(methods[i].body));
  }
}

const struct methods_method *methods_method(unsigned which) {
  return &methods[which % METHODS];
}

const struct methods_method *methods_find(const char *name) {
  const unsigned at = number_of(name);
  return at < METHODS ? &methods[at] : NULL;
}

zps_json *methods_body(const struct methods_method *method, unsigned variant) {
  if (golden[0].n == 0) read_all();
  const unsigned at = (unsigned)(method - methods);
  return zps_json_copy(golden[at].body[variant % golden[at].n]);
}

/* ---- changes ---- */

struct change {
  unsigned left; /* values to go to the one that is replaced */
  bool done, leaves_out;
  const char *by;
  zps_json *made; /* the object whose members are visited */
};

/* Any value, which a text of its own cannot be. */
static zps_json *other(const char *text) {
  char list[256];
  snprintf(list, sizeof list, "[%s]", text);
  zps_json *const parsed = parse(list, strlen(list)), *const made = zps_json_copy(zps_json_at(parsed, 0));
  zps_json_unref(parsed);
  return made;
}

static zps_json *copy(struct change *change, const zps_json *value);

static void copy_member(void *ctx, const char *key, const zps_json *value) {
  struct change *const change = ctx;
  zps_json *const object = change->made, *const member = copy(change, value);
  change->made = member ? zps_json_set(object, key, member) : object;
}

/* NULL: it is left out. */
static zps_json *copy(struct change *change, const zps_json *value) {
  if (!change->done && change->left-- == 0) {
    change->done = true;
    return change->leaves_out ? NULL : other(change->by);
  }
  if (zps_json_is_object(value)) {
    zps_json *const outer = change->made;
    change->made = zps_json_object();
    zps_json_each(value, copy_member, change);
    zps_json *const made = change->made;
    change->made = outer;
    return made;
  }
  if (!zps_json_is_array(value)) return zps_json_copy(value);
  zps_json *made = zps_json_array();
  for (size_t i = 0; i < zps_json_array_len(value); i++) {
    zps_json *const element = copy(change, zps_json_at(value, i));
    if (element) made = zps_json_append(made, element);
  }
  return made;
}

static unsigned count(const zps_json *value);

static void count_member(void *ctx, const char *key, const zps_json *value) {
  (void)key;
  *(unsigned *)ctx += count(value);
}

static unsigned count(const zps_json *value) {
  unsigned n = 1;
  if (zps_json_is_object(value)) zps_json_each(value, count_member, &n);
  for (size_t i = 0; zps_json_is_array(value) && i < zps_json_array_len(value); i++) n += count(zps_json_at(value, i));
  return n;
}

/* Never the whole body. */
zps_json *methods_change(zps_json *body, unsigned which, unsigned what) {
  const unsigned n = count(body);
  if (n == 1) return body;
  struct change change = {.left = 1 + which % (n - 1), .leaves_out = what % 8 == 0, .by = others[what / 8 % OTHERS]};
  zps_json *const made = copy(&change, body);
  zps_json_unref(body);
  return made;
}
