/* Tokens: which ones let into a job, and what key files may hold. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "common/token/token.h"

#define NOW 1800000000u
static const struct zps_token_keys one = {.n = 1, .key = {{1, 2, 3}}};
static const struct zps_token_keys both = {.n = 2, .key = {{9, 9}, {1, 2, 3}}};
static const struct zps_token_keys other = {.n = 1, .key = {{9, 9}}};

static zps_err_t check_with(const struct zps_token_keys *keys, const char *text, const char *job, const char *says) {
  struct zps_error error = {.text = ""};
  const zps_err_t err = zps_token_check(keys, text, job, NOW, &error);
  if (err) assert_int_equal(error.code, err);
  if (says && !strstr(error.text, says)) fail_msg("'%s' does not say '%s'", error.text, says);
  return err;
}

static void a_token_lets_into_its_job(void **state) {
  (void)state;
  char text[ZPS_TOKEN_SIZE];
  assert_int_equal(zps_token_make(&one, "nmt", 0, text, NULL), ZPS_OK);
  assert_int_equal(check_with(&one, text, "nmt", NULL), ZPS_OK);
  assert_int_equal(check_with(&one, text, "nmt2", "lets into 'nmt' alone"), ZPS_ERR_REFUSED);
  assert_int_equal(check_with(&one, text, "nm", "lets into 'nmt' alone"), ZPS_ERR_REFUSED);
  assert_int_equal(zps_token_make(&one, "nmt*", 0, text, NULL), ZPS_OK);
  assert_int_equal(check_with(&one, text, "nmt", NULL), ZPS_OK);
  assert_int_equal(check_with(&one, text, "nmt-7", NULL), ZPS_OK);
  assert_int_equal(check_with(&one, text, "nm", "lets into 'nmt*' alone"), ZPS_ERR_REFUSED);
  assert_int_equal(zps_token_make(&one, "*", 0, text, NULL), ZPS_OK);
  assert_int_equal(check_with(&one, text, "any", NULL), ZPS_OK);
}

static void a_token_expires(void **state) {
  (void)state;
  char text[ZPS_TOKEN_SIZE];
  assert_int_equal(zps_token_make(&one, "nmt", NOW + 1, text, NULL), ZPS_OK);
  assert_int_equal(check_with(&one, text, "nmt", NULL), ZPS_OK);
  assert_int_equal(zps_token_make(&one, "nmt", NOW - 5, text, NULL), ZPS_OK);
  assert_int_equal(check_with(&one, text, "nmt", "has expired 5 s ago"), ZPS_ERR_REFUSED);
}

/* A key that is to go stands behind the new one until its tokens are replaced. */
static void keys_take_turns(void **state) {
  (void)state;
  char old[ZPS_TOKEN_SIZE], new[ZPS_TOKEN_SIZE];
  assert_int_equal(zps_token_make(&one, "nmt", 0, old, NULL), ZPS_OK);
  assert_int_equal(zps_token_make(&both, "nmt", 0, new, NULL), ZPS_OK);
  assert_int_equal(check_with(&both, old, "nmt", NULL), ZPS_OK);
  assert_int_equal(check_with(&both, new, "nmt", NULL), ZPS_OK);
  assert_int_equal(check_with(&other, new, "nmt", NULL), ZPS_OK);
  assert_int_equal(check_with(&other, old, "nmt", "no key of the coordinator's"), ZPS_ERR_REFUSED);
}

static void without_keys_no_token_is_asked_for(void **state) {
  (void)state;
  const struct zps_token_keys none = {.n = 0};
  assert_int_equal(check_with(&none, NULL, "nmt", NULL), ZPS_OK);
  assert_int_equal(check_with(&none, "anything", "nmt", NULL), ZPS_OK);
  assert_int_equal(check_with(&one, NULL, "nmt", "ZENPS_TOKEN_FILE"), ZPS_ERR_REFUSED);
  assert_int_equal(check_with(&one, "", "nmt", "ZENPS_TOKEN_FILE"), ZPS_ERR_REFUSED);
}

/* Whatever byte is changed, nothing is let in, and the refusal does not repeat the token. */
static void a_changed_token_lets_nobody_in(void **state) {
  (void)state;
  char text[ZPS_TOKEN_SIZE];
  assert_int_equal(zps_token_make(&one, "nmt*", NOW + 100, text, NULL), ZPS_OK);
  const size_t len = strlen(text);
  for (size_t i = 0; i < len; i++) {
    for (unsigned bit = 0; bit < 7; bit++) {
      char changed[ZPS_TOKEN_SIZE], mac[65];
      struct zps_error error = {.text = ""};
      memcpy(changed, text, len + 1);
      changed[i] = (char)(changed[i] ^ (1 << bit));
      if (changed[i] == '\0') continue;
      assert_int_equal(zps_token_check(&one, changed, "nmt7", NOW, &error), ZPS_ERR_REFUSED);
      assert_int_equal(error.code, ZPS_ERR_REFUSED);
      snprintf(mac, sizeof mac, "%s", strchr(strchr(text, '.') + 1, '.') + 1);
      assert_null(strstr(error.text, mac));
    }
    char cut[ZPS_TOKEN_SIZE];
    memcpy(cut, text, len + 1);
    cut[i] = '\0';
    assert_int_equal(zps_token_check(&one, cut, "nmt7", NOW, NULL), ZPS_ERR_REFUSED);
  }
}

/* The form is fixed: tokens that are out there must go on to be right. By an independent HMAC (Python's). */
static void the_form_is_known(void **state) {
  (void)state;
  struct zps_token_keys keys = {.n = 1};
  char text[ZPS_TOKEN_SIZE];
  struct zps_token token;
  for (unsigned i = 0; i < ZPS_TOKEN_KEY_BYTES; i++) keys.key[0][i] = (uint8_t)i;
  assert_int_equal(zps_token_make(&keys, "nmt*", 1800000100, text, NULL), ZPS_OK);
  assert_string_equal(text, "zps1.1800000100.683599011368117f9441d4a7b01f33cf96d634461735772276c8a3759b24d7ed.nmt*");
  assert_int_equal(zps_token_parse(text, &token, NULL), ZPS_OK);
  assert_int_equal(token.expires_s, 1800000100);
  assert_string_equal(token.job, "nmt*");
}

static void names_are_checked(void **state) {
  (void)state;
  char text[ZPS_TOKEN_SIZE], job[ZPS_TOKEN_JOB_MAX + 2];
  struct zps_token token;
  memset(job, 'x', sizeof job);
  job[ZPS_TOKEN_JOB_MAX] = '\0';
  assert_int_equal(zps_token_make(&one, job, UINT64_C(999999999999999999), text, NULL), ZPS_OK);
  assert_int_equal(zps_token_parse(text, &token, NULL), ZPS_OK);
  assert_string_equal(token.job, job);
  job[ZPS_TOKEN_JOB_MAX] = 'x';
  job[ZPS_TOKEN_JOB_MAX + 1] = '\0';
  assert_int_equal(zps_token_make(&one, job, 0, text, NULL), ZPS_ERR_INVALID);
  assert_int_equal(zps_token_make(&one, "", 0, text, NULL), ZPS_ERR_INVALID);
  assert_int_equal(zps_token_make(&one, "a\nb", 0, text, NULL), ZPS_ERR_INVALID);
}

/* ------------------------------------------------------------ key files */

static char folder[] = "/tmp/test_token.XXXXXX", path[sizeof folder + 10];

static int set_up(void **state) {
  (void)state;
  if (!mkdtemp(folder)) return -1;
  snprintf(path, sizeof path, "%s/keys", folder);
  return 0;
}

static int tear_down(void **state) {
  (void)state;
  unlink(path);
  return rmdir(folder);
}

static void put(const char *text) {
  unlink(path);
  FILE *const file = fopen(path, "w");
  assert_non_null(file);
  fputs(text, file);
  fclose(file);
  assert_int_equal(chmod(path, 0600), 0);
}

static zps_err_t read_says(const char *says) {
  struct zps_token_keys keys;
  struct zps_error error = {.text = ""};
  const zps_err_t err = zps_token_keys_read(path, &keys, &error);
  if (err) assert_int_equal(keys.n, 0);
  if (!strstr(error.text, says)) fail_msg("'%s' does not say '%s'", error.text, says);
  return err;
}

#define KEY "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"

static void a_key_file_is_made_and_read(void **state) {
  (void)state;
  struct zps_token_keys keys, again;
  struct zps_error error;
  struct stat stat_of;
  unlink(path);
  assert_int_equal(zps_token_key_create(path, NULL), ZPS_OK);
  assert_int_equal(zps_token_key_create(path, &error), ZPS_ERR_BUSY);
  assert_int_equal(stat(path, &stat_of), 0);
  assert_int_equal(stat_of.st_mode & 0777, 0600);
  assert_int_equal(zps_token_keys_read(path, &keys, NULL), ZPS_OK);
  assert_int_equal(keys.n, 1);
  unlink(path);
  assert_int_equal(zps_token_key_create(path, NULL), ZPS_OK);
  assert_int_equal(zps_token_keys_read(path, &again, NULL), ZPS_OK);
  assert_memory_not_equal(keys.key[0], again.key[0], ZPS_TOKEN_KEY_BYTES);
}

static void lines_of_a_key_file(void **state) {
  (void)state;
  struct zps_token_keys keys;
  put("# the new one\n" KEY "\n\n" KEY);
  assert_int_equal(zps_token_keys_read(path, &keys, NULL), ZPS_OK);
  assert_int_equal(keys.n, 2);
  assert_int_equal(keys.key[1][1], 0x11);
  put("# of an editor on Windows\r\n\r\n" KEY "\r\n" KEY "\r");
  assert_int_equal(zps_token_keys_read(path, &keys, NULL), ZPS_OK);
  assert_int_equal(keys.n, 2);
  put(KEY "\n0123\n");
  assert_int_equal(read_says("line 2 is no key"), ZPS_ERR_INVALID);
  put(KEY "0\n");
  assert_int_equal(read_says("line 1 is no key"), ZPS_ERR_INVALID);
  put("# none\n\n");
  assert_int_equal(read_says("has no key"), ZPS_ERR_INVALID);
  put(KEY "\n" KEY "\n" KEY "\n" KEY "\n" KEY "\n");
  assert_int_equal(read_says("line 5 is a key too many"), ZPS_ERR_INVALID);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_token_lets_into_its_job),
      cmocka_unit_test(a_token_expires),
      cmocka_unit_test(keys_take_turns),
      cmocka_unit_test(without_keys_no_token_is_asked_for),
      cmocka_unit_test(a_changed_token_lets_nobody_in),
      cmocka_unit_test(the_form_is_known),
      cmocka_unit_test(names_are_checked),
      cmocka_unit_test(a_key_file_is_made_and_read),
      cmocka_unit_test(lines_of_a_key_file),
  };
  return cmocka_run_group_tests(tests, set_up, tear_down);
}
