/* Errors, hash, generator and text: the small parts of common/base. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "common/base/err.h"
#include "common/base/exit.h"
#include "common/base/hash.h"
#include "common/base/did_you_mean.h"
#include "common/base/rng.h"
#include "common/base/clock.h"
#include "common/base/container.h"
#include "common/base/text.h"
#include "common/base/waits.h"
#include "zenps/zenps.h"

static void codes_have_names_and_texts(void **state) {
  (void)state;
  for (int code = 0; code >= ZPS_ERR_TRAINER; code--) {
    assert_string_not_equal(zps_err_str((zps_err_t)code), "unknown error");
    assert_int_equal(zps_err_from_name(zps_err_name((zps_err_t)code)), code);
  }
  assert_string_equal(zps_err_str((zps_err_t)-1000), "unknown error");
  assert_string_equal(zps_err_name((zps_err_t)1), "ERR_?");
  assert_int_equal(zps_err_from_name("ERR_BOGUS"), ZPS_ERR_INTERNAL);
  assert_int_equal(zps_err_from_name(NULL), ZPS_ERR_INTERNAL);
}

static void fail_writes_code_and_text(void **state) {
  (void)state;
  struct zps_error error;
  assert_int_equal(zps_fail(&error, ZPS_ERR_SHAPE, "tensor %s", "emb"), ZPS_ERR_SHAPE);
  assert_int_equal(error.code, ZPS_ERR_SHAPE);
  assert_string_equal(error.text, "tensor emb");
  zps_fail(&error, ZPS_ERR_IO, "job j: %s", error.text); /* the old text as argument of the new one */
  assert_string_equal(error.text, "job j: tensor emb");
  zps_fail(&error, ZPS_ERR_IO, "line '%s'", "caf\xc3\xa9\x1b[2J\n!\xff");
  assert_string_equal(error.text, "line 'caf\xc3\xa9?[2J?!?'");
  assert_int_equal(zps_fail(NULL, ZPS_ERR_IO, "x"), ZPS_ERR_IO);
}

static void names_that_are_refused_are_named(void **state) {
  (void)state;
  struct zps_error error;
  char name[300], wanted[400];
  assert_int_equal(zps_text_check_name("tensor", "emb\xc3\xa9 1", 7, &error), ZPS_OK);
  assert_int_equal(zps_text_check_name("tensor", "", 7, &error), ZPS_ERR_INVALID);
  assert_string_equal(error.text, "tensor name \"\" has 0 bytes; it must have 1 to 7");
  assert_int_equal(zps_text_check_name("tensor", "emb\xc3\xa9 12", 7, &error), ZPS_ERR_INVALID);
  assert_string_equal(error.text, "tensor name \"emb\xc3\xa9 12\" has 8 bytes; it must have 1 to 7");
  assert_int_equal(zps_text_check_name("job", "a\tb", 127, &error), ZPS_ERR_INVALID);
  assert_string_equal(error.text,
                      "job name \"a?b\" has 3 bytes, and byte 1 is 0x09; it must have 1 to 127, of printable UTF-8");
  memset(name, 'n', sizeof name);
  name[sizeof name - 1] = '\0';
  assert_int_equal(zps_text_check_name("job", name, 127, &error), ZPS_ERR_INVALID);
  snprintf(wanted, sizeof wanted, "job name \"%.140s...\" has 299 bytes; it must have 1 to 127", name);
  assert_string_equal(error.text, wanted);
}

static void fail_errno_appends_the_cause(void **state) {
  (void)state;
  struct zps_error error;
  char path[2000], wanted[100];
  assert_int_equal(zps_fail_errno(&error, ZPS_ERR_IO, ENOENT, "cannot open %s", "/x"), ZPS_ERR_IO);
  snprintf(wanted, sizeof wanted, "cannot open /x: %s", strerror(ENOENT));
  assert_string_equal(error.text, wanted);
  memset(path, 'p', sizeof path);
  path[sizeof path - 1] = '\0';
  zps_fail_errno(&error, ZPS_ERR_IO, ENOENT, "cannot open %s", path);
  assert_non_null(strstr(error.text, strerror(ENOENT))); /* a long text does not push the cause out */
  assert_int_equal(zps_fail_errno(NULL, ZPS_ERR_IO, ENOENT, "x"), ZPS_ERR_IO);
}

/* Values of MurmurHash3's fmix64, and of splitmix64 from seed 1234567, as published. */
static void hash_and_generator_give_known_answers(void **state) {
  (void)state;
  assert_true(zps_hash_mix64(0) == 0);
  assert_true(zps_hash_mix64(1) == 0xb456bcfc34c2cb2cull);
  assert_true(zps_hash_mix64(UINT64_MAX) == 0x64b5720b4b825f21ull);
  struct zps_rng rng = {1234567};
  assert_true(zps_rng_u64(&rng) == 6457827717110365317ull);
  assert_true(zps_rng_u64(&rng) == 3203168211198807973ull);
}

static void reduction_stays_in_range_and_spreads(void **state) {
  (void)state;
  unsigned count[7] = {0};
  assert_int_equal(zps_hash_reduce(UINT64_MAX, 7), 6);
  assert_int_equal(zps_hash_reduce(0, 7), 0);
  for (uint64_t i = 0; i < 70000; i++) count[zps_hash_reduce(zps_hash_mix64(i), 7)]++;
  for (int i = 0; i < 7; i++) assert_in_range(count[i], 9500, 10500);
  struct zps_rng rng = {1};
  for (int i = 0; i < 1000; i++) {
    assert_true(zps_rng_below(&rng, 3) < 3);
    const double unit = zps_rng_unit(&rng);
    assert_true(unit >= 0 && unit < 1);
  }
}

static void text_of_peers_is_checked(void **state) {
  (void)state;
  static const struct {
    const char *text;
    size_t printable;
  } cases[] = {
      {"", 0},         {"plain", 5},         {"a\nb", 1},         {"caf\xc3\xa9", 5},      {"x\xc3", 1},
      {"\xc0\x80", 0}, {"\xe0\x80\x80", 0},  {"\xed\xa0\x80", 0}, {"\xf0\x9f\x98\x80", 4}, {"\xf5\x80\x80\x80", 0},
      {"a\x7f", 1},    {"\xe2\x82\xac!", 4}, {"\x80", 0}};
  for (unsigned i = 0; i < sizeof cases / sizeof cases[0]; i++)
    assert_int_equal(zps_text_printable(cases[i].text, strlen(cases[i].text)), cases[i].printable);
  char text[] = "ok\x01\xc3\xa9\xff.";
  zps_text_sanitize(text, strlen(text));
  assert_string_equal(text, "ok?\xc3\xa9?.");
}

static void waits_are_means_of_turns(void **state) {
  (void)state;
  struct zps_waits waits = {.fd = -1};
  zps_waits_take(&waits, "900 1000 10\n");
  assert_int_equal(zps_waits_look(&waits, 1), 0); /* the state before is unknown */
  zps_waits_take(&waits, "900 41000 20\n");
  const uint64_t once = zps_waits_look(&waits, 2);
  assert_true(once > 0 && once <= 4000);
  zps_waits_take(&waits, "900 941000 21\n"); /* one turn may be anything */
  zps_waits_take(&waits, "900 50 60\n");
  zps_waits_take(&waits, "nonsense");
  zps_waits_take(&waits, "");
  assert_int_equal(zps_waits_look(&waits, 3), once);
  for (uint64_t i = 1; i <= 100; i++) {
    char line[64];
    snprintf(line, sizeof line, "900 %llu %llu", 41000 + 4000ull * 10 * i, 20 + 10ull * i);
    zps_waits_take(&waits, line);
  }
  assert_true(zps_waits_look(&waits, 4) >= 3999 && zps_waits_look(&waits, 4) <= 4000);
  /* The real one: nothing, or something sane. */
  zps_waits_init(&waits);
  for (uint64_t now_ns = 1; now_ns < 10000000000ull; now_ns += 1000000000ull)
    assert_true(zps_waits_look(&waits, now_ns) < 10000000000ull);
  zps_waits_fini(&waits);
}

/* The suggestion for `typed` among some words; "" for none. */
static const char *nearest(const char *typed) {
  static const char *const words[] = {"status", "members", "jobs", "tensors",
                                      "stats",  "version", "plan", "recursive-doubling"};
  struct zps_near near;
  zps_near_begin(&near, typed, strlen(typed));
  for (unsigned i = 0; i < sizeof words / sizeof words[0]; i++) zps_near_try(&near, words[i]);
  return zps_near_word(&near) ? zps_near_word(&near) : "";
}

static void mistyped_words_are_near_to_what_was_meant(void **state) {
  (void)state;
  assert_string_equal(nearest("stauts"), "status"); /* stats is one letter away, too, but shorter */
  assert_string_equal(nearest("sttaus"), "status");
  assert_string_equal(nearest("job"), "jobs");
  assert_string_equal(nearest("tensor"), "tensors");
  assert_string_equal(nearest("pllan"), "plan");
  assert_string_equal(nearest("Members"), "members");
  assert_string_equal(nearest("recursivedubling"), "recursive-doubling");
  assert_string_equal(nearest("plans"), "plan");
  assert_string_equal(nearest(""), "");
  assert_string_equal(nearest("gizmos"), "");
  assert_string_equal(nearest("o"), "");
  assert_string_equal(nearest("jxxs"), ""); /* half of it is wrong */
}

static void what_is_asked_stops_at_its_length_and_can_be_huge(void **state) {
  (void)state;
  struct zps_near near;
  char text[60], huge[200];
  zps_near_begin(&near, "rxws=12345678", 4);
  zps_near_try(&near, "rows");
  assert_string_equal(zps_near_say(&near, "did you mean --", "?", text, sizeof text), "did you mean --rows?");
  zps_near_try(&near, "raws"); /* at the same distance, and of the same length */
  assert_null(zps_near_word(&near));
  zps_near_try(&near, "rows");
  assert_null(zps_near_word(&near));
  zps_near_begin(&near, "bogus", 5);
  zps_near_try(&near, "rows");
  assert_string_equal(zps_near_say(&near, "did you mean --", "?", text, sizeof text), "");
  memset(huge, 'x', sizeof huge);
  huge[sizeof huge - 1] = '\0';
  zps_near_begin(&near, huge, sizeof huge - 1);
  zps_near_try(&near, huge);
  zps_near_try(&near, "x");
  assert_null(zps_near_word(&near));
  memset(huge, 'y', 63); /* the longest that is compared */
  huge[63] = '\0';
  char other[64];
  strcpy(other, huge);
  other[62] = 'x';
  zps_near_begin(&near, huge, 63);
  zps_near_try(&near, other);
  assert_string_equal(zps_near_word(&near), other);
}

static void errors_have_exit_codes(void **state) {
  (void)state;
  assert_int_equal(zps_exit_of(ZPS_OK), 0);
  assert_int_equal(zps_exit_of(ZPS_ERR_FABRIC), 1);
  assert_int_equal(zps_exit_of(ZPS_ERR_NOMEM), 1);
  assert_int_equal(zps_exit_of(ZPS_ERR_INVALID), 2);
  assert_int_equal(zps_exit_of(ZPS_ERR_CONNECT), 3);
  assert_int_equal(zps_exit_of(ZPS_ERR_CLOSED), 3);
  assert_int_equal(zps_exit_of(ZPS_ERR_REFUSED), 4);
  assert_int_equal(zps_exit_of(ZPS_ERR_VERSION), 4);
}

static void pieces_are_added_as_far_as_there_is_room(void **state) {
  (void)state;
  char text[12] = "";
  zps_text_add(text, sizeof text, "rank %u", 7u);
  assert_string_equal(text, "rank 7");
  zps_text_add(text, sizeof text, "%s", ", and 8");
  assert_string_equal(text, "rank 7, and");
  zps_text_add(text, sizeof text, "more");
  assert_string_equal(text, "rank 7, and");
}

static void a_time_is_seconds_and_nanoseconds(void **state) {
  (void)state;
  const struct timespec ts = zps_clock_timespec(3 * ZPS_NS_PER_S + 999999999);
  assert_int_equal(ts.tv_sec, 3);
  assert_int_equal(ts.tv_nsec, 999999999);
}

struct embedded {
  int before;
  char member;
};

static void a_member_leads_to_what_it_is_a_member_of(void **state) {
  (void)state;
  struct embedded object = {0};
  assert_ptr_equal(zps_container_of(&object.member, struct embedded, member), &object);
}

static void words_of_a_list_have_no_blanks_around(void **state) {
  (void)state;
  static const char *const words[] = {"eth0", "to close=IT NOW", "10.0.0.0/8", "cut"};
  const char *list = " eth0,to close=IT NOW , ,,10.0.0.0/8, cutoff  ";
  char word[16];
  for (unsigned i = 0; i < sizeof words / sizeof words[0]; i++) {
    assert_true(zps_text_word(&list, word, i == 3 ? 4 : sizeof word));
    assert_string_equal(word, words[i]);
  }
  assert_false(zps_text_word(&list, word, sizeof word));
  assert_string_equal(list, "");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(codes_have_names_and_texts),
      cmocka_unit_test(fail_writes_code_and_text),
      cmocka_unit_test(names_that_are_refused_are_named),
      cmocka_unit_test(fail_errno_appends_the_cause),
      cmocka_unit_test(hash_and_generator_give_known_answers),
      cmocka_unit_test(reduction_stays_in_range_and_spreads),
      cmocka_unit_test(text_of_peers_is_checked),
      cmocka_unit_test(waits_are_means_of_turns),
      cmocka_unit_test(mistyped_words_are_near_to_what_was_meant),
      cmocka_unit_test(what_is_asked_stops_at_its_length_and_can_be_huge),
      cmocka_unit_test(errors_have_exit_codes),
      cmocka_unit_test(pieces_are_added_as_far_as_there_is_room),
      cmocka_unit_test(words_of_a_list_have_no_blanks_around),
      cmocka_unit_test(a_time_is_seconds_and_nanoseconds),
      cmocka_unit_test(a_member_leads_to_what_it_is_a_member_of),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
