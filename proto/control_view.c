#include "proto/control_view.h"

static const char *state_word(unsigned state) {
  static const char *const words[] = {[ZPS_PLACE_FREE] = "free",
                                      [ZPS_PLACE_IN] = "in",
                                      [ZPS_PLACE_LEAVING] = "leaving",
                                      [ZPS_PLACE_JOINING] = "joining"};
  return state <= ZPS_PLACE_JOINING ? words[state] : "?";
}

static zps_err_t check_view(void *read, struct zps_error *error) {
  const struct zps_view_image *const view = read;
  if (view->n_first > view->n_places)
    return zps_fail(error, ZPS_ERR_PROTOCOL, "member 'began' is %u, want 1 to %u, as there are places", view->n_first,
                    view->n_places);
  for (uint32_t i = 0; i < view->n_places; i++) {
    const struct zps_place_image *const place = &view->places[i];
    if (place->state == ZPS_PLACE_IN && place->since > view->epoch)
      return zps_fail(error, ZPS_ERR_PROTOCOL, "member 'places[%u].since' is %u, want at most %u, the epoch", i,
                      place->since, view->epoch);
    if (place->state == ZPS_PLACE_JOINING && place->since == 0)
      return zps_fail(error, ZPS_ERR_PROTOCOL, "member 'places[%u].since' is missing, want the server's epoch", i);
  }
  return ZPS_OK;
}

static const struct zps_field place_server[] = {
    {"name", ZPS_FIELD_TEXT, ZPS_FIELD_AT(struct zps_place_server, name), .min = 1},
    {"address", ZPS_FIELD_BYTES, ZPS_FIELD_BYTES_AT(struct zps_place_server, addr, addr_len)},
};
static const struct zps_fields place_server_fields = {ZPS_FIELDS_OF(struct zps_place_server, place_server)};

#define AT(member) ZPS_FIELD_AT(struct zps_place_image, member)
static const struct zps_field place_members[] = {
    {"state", ZPS_FIELD_WORD, AT(state), .word = state_word, .max = ZPS_PLACE_JOINING, .optional = true,
     .absent = ZPS_PLACE_IN},
    {"lost", ZPS_FIELD_FLAG, AT(was_lost), .optional = true},
    {"since", ZPS_FIELD_NUMBER, AT(since), .min = 1, .optional = true},
    {"number", ZPS_FIELD_NUMBER, AT(number), .max = ZPS_NO_SERVER - 1, .optional = true, .absent = ZPS_NO_SERVER},
    {.type = ZPS_FIELD_PART, AT(server), .part = &place_server_fields, .optional = true},
};
#undef AT
static const struct zps_fields place_fields = {ZPS_FIELDS_OF(struct zps_place_image, place_members)};

static const struct zps_field view_members[] = {
    {"epoch", ZPS_FIELD_NUMBER, ZPS_FIELD_AT(struct zps_view_image, epoch)},
    {"began", ZPS_FIELD_NUMBER, ZPS_FIELD_AT(struct zps_view_image, n_first), .min = 1, .max = ZPS_SERVERS_MAX},
    {"places", ZPS_FIELD_OBJECT, ZPS_FIELD_LIST_AT(struct zps_view_image, places, n_places), .n_min = 1,
     .n_max = ZPS_SERVERS_MAX, .part = &place_fields},
};
const struct zps_fields zps_control_view = {ZPS_FIELDS_OF(struct zps_view_image, view_members), .check = check_view};
