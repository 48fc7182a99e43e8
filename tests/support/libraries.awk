# The libraries that the Makefile fragments build of folders, and the libraries that the unit tests of worker/ link.
# Reads the floors (may FOLDER ALLOWED...) and the sources (source FILE) from -, then the fragments; prints, with tabs
# between, what is not to be:
#   library  FOLDER   the folder's files are not in one library alone, or that library has files of another folder
#   links    ROOM     a unit test of the room, or the make variable W_ROOM, links what neither it nor a room below may use
# A library that only tests link may hold anything; worker/tools has what tests hold results against, as zenps-perf does.
# -v libraries='FOLDER=LIBRARY,LIBRARY ...': folders in more than one library.
function room_of(file) {
  return match(file, /^[^\/]*\/[^\/]*\//) ? substr(file, 1, RLENGTH - 1) : file
}
function folder_of(file) {
  sub(/\/[^\/]*$/, "", file)
  return file
}
function with(list, word) {
  return list == "" ? word : list " " word
}
function canonical(name) {
  gsub(/[^A-Za-z0-9_@]/, "_", name)
  return name
}
function expand(text, depth,    before, name) {
  while (depth < 20 && match(text, /\$\([A-Za-z0-9_]+\)/)) {
    name = substr(text, RSTART + 2, RLENGTH - 3)
    before = substr(text, 1, RSTART - 1)
    text = substr(text, RSTART + RLENGTH)
    if (name ~ /_la_OBJECTS$/) {
      sub(/_la_OBJECTS$/, ".la", name)
      text = before " " name " " text
    } else {
      text = before expand(value[name], depth + 1) text
    }
  }
  return text
}
# linked[FOLDER]: the folders that files and libraries of TEXT bring in, and the folders of which those libraries are
# made.
function link_all(text, linked,    words, n, i) {
  n = split(expand(text, 0), words, " ")
  for (i = 1; i <= n; i++) {
    if (words[i] ~ /\.(c|cpp)$/)
      linked[folder_of(words[i])] = 1
    else if (words[i] ~ /\.la$/ && !(("lib", canonical(words[i])) in linked)) {
      linked["lib", canonical(words[i])] = 1
      if (!((canonical(words[i]) "_SOURCES") in value))
        linked[words[i] " which no fragment makes"] = 1
      if (!(words[i] in is_for_tests))
        link_all(value[canonical(words[i]) "_SOURCES"], linked)
      link_all(value[canonical(words[i]) "_LIBADD"], linked)
    }
  }
}
function look(room, name, text,    linked, folder, wrong) {
  link_all(text, linked)
  wrong = ""
  for (folder in linked)
    if (!(folder ~ SUBSEP || folder ~ /^(tests\/|worker\/tools$)/ || folder == room || (room, folder) in is_allowed))
      wrong = wrong " " folder
  if (wrong != "")
    print "links\t" room "\t" name " links" wrong
}
FNR == 1 && FILENAME != "-" {
  here = FILENAME
  if (!sub(/\/[^\/]*$/, "", here))
    here = "."
}
FILENAME == "-" && $1 == "may" {
  is_folder[$2] = 1
  for (i = 3; i <= NF; i++)
    is_allowed[$2, $i] = 1
  for (i = 3; i <= NF; i++) # which come before it
    for (room in is_folder)
      if (($i, room) in is_allowed)
        is_allowed[$2, room] = 1
  next
}
FILENAME == "-" {
  sources[$2] = 1
  next
}
/^\t/ || /^#/ { next }
{
  line = line $0
  if (sub(/\\$/, " ", line))
    next
  gsub(/%D%/, here, line)
  if (match(line, /^[A-Za-z0-9_]+ *\+?= */)) {
    name = substr(line, 1, RLENGTH)
    sub(/ *\+?= *$/, "", name)
    value[name] = value[name] " " substr(line, RLENGTH + 1)
  }
  line = ""
}
END {
  n = split(libraries, words, " ")
  for (i = 1; i <= n; i++) {
    split(words[i], part, "=")
    wanted[part[1]] = part[2]
  }
  n = split(expand(value["check_LTLIBRARIES"], 0), words, " ")
  for (i = 1; i <= n; i++)
    is_for_tests[words[i]] = 1
  n = split(expand(value["noinst_LTLIBRARIES"], 0), words, " ")
  for (i = 1; i <= n; i++) {
    library = words[i]
    sub(/\.la$/, "", library)
    m = split(expand(value[canonical(words[i]) "_SOURCES"], 0), files, " ")
    for (j = 1; j <= m; j++)
      if (files[j] ~ /\.c$/)
        in_library[files[j]] = with(in_library[files[j]], library)
  }
  for (file in sources) {
    room = room_of(file)
    if (room == file || file ~ /\/main\.c$/ || room ~ /^worker\/(tools|examples)$/)
      continue
    if (!(file in in_library)) {
      print "library\t" room "\t" file " is in no library"
      continue
    }
    if (!((room, in_library[file]) in counted)) {
      counted[room, in_library[file]] = 1
      seen[room] = with(seen[room], in_library[file])
    }
    if (in_library[file] in owner && owner[in_library[file]] != room)
      print "library\t" room "\t" in_library[file] " has files of " owner[in_library[file]] ", too"
    owner[in_library[file]] = room
  }
  for (room in seen) {
    n = split(room in wanted ? wanted[room] : "", words, ",")
    for (i = 1; i <= n; i++)
      if (!((room, words[i]) in counted))
        print "library\t" room "\t" words[i] " has no file of it"
    if (split(seen[room], words, " ") != (n ? n : 1))
      print "library\t" room "\tis in " seen[room]
  }
  for (room in seen) {
    if (room !~ /^worker\//)
      continue
    name = "W_" toupper(substr(room, 8))
    if (!(name in value))
      print "links\t" room "\tno " name " in a fragment"
    look(room, name, value[name])
  }
  n = split(expand(value["UNIT_TESTS"], 0), words, " ")
  for (i = 1; i <= n; i++) {
    room = folder_of(words[i])
    if (sub(/^tests\/unit\//, "", room) && room in seen && room ~ /^worker\//)
      look(room, words[i], value[canonical(words[i]) "_SOURCES"] " " value[canonical(words[i]) "_LDADD"])
  }
}
