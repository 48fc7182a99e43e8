# What calls what between folders and files, of the symbols of their objects. Reads lines
#   may FOLDER ALLOWED...                    (floors.sh)
#   source FILE                              the sources there are
#   OBJECT: SYMBOL TYPE ...                  nm -A -P -g
# and prints, with tabs between, what is not to be:
#   use      FOLDER             OBJECT uses SYMBOL of OBJECT      the folder's line forbids it, or the folder has no line
#   folders  FOLDER,FOLDER,...  OBJECT uses SYMBOL of OBJECT      folders in a circle; one symbol for every arrow
#   files    FILE,FILE,...      OBJECT uses SYMBOL... of OBJECT   files in a circle, more than one object's code may have
#   unread   FILE               no object of it was read
# -v limit=N: how many files may form a circle. -v limits="FOLDER/=N ...": the same, below these folders.
function folder_of(file) {
  sub(/\/[^\/]*$/, "", file)
  return file
}
# A program's or a library's name may stand before the source's, and libtool's folder around it.
function source_of(object,    file, base) {
  file = object
  sub(/\.o$/, "", file)
  sub(/\.libs\//, "", file)
  if (file in is_source)
    return file
  base = file
  sub(/^.*\//, "", base)
  sub(/^[^-]*-/, "", base)
  file = folder_of(file) "/" base
  return file in is_source ? file : ""
}
# reach[a, b]: arrows lead from a to b.
function follow(arrows, reach, nodes,    from, node, next_node, todo, targets, n, names, i) {
  for (from in nodes) {
    n = 0
    todo[n++] = from
    while (n > 0) {
      node = todo[--n]
      names = split(arrows[node], targets, " ")
      for (i = 1; i <= names; i++) {
        next_node = targets[i]
        if (!((from, next_node) in reach)) {
          reach[from, next_node] = 1
          todo[n++] = next_node
        }
      }
    }
  }
}
# circle[node]: the names of all that are in a circle with it, and how many they are in circle_size[node].
function find_circles(arrows, nodes, circle, circle_size,    reach, a, b, members, n, i, j, name) {
  follow(arrows, reach, nodes)
  for (a in nodes) {
    if (!((a, a) in reach) || (a in circle))
      continue
    n = 0
    for (b in nodes)
      if ((a, b) in reach && (b, a) in reach)
        members[++n] = b
    for (i = 2; i <= n; i++)
      for (j = i; j > 1 && members[j] < members[j - 1]; j--) {
        name = members[j]
        members[j] = members[j - 1]
        members[j - 1] = name
      }
    name = members[1]
    for (i = 2; i <= n; i++)
      name = name "," members[i]
    for (i = 1; i <= n; i++) {
      circle[members[i]] = name
      circle_size[members[i]] = n
    }
  }
}
# How many files may form this circle, by the folder of the first.
function limit_of(circle,    i, n, words, pair, least) {
  least = limit
  n = split(limits, words, " ")
  for (i = 1; i <= n; i++) {
    split(words[i], pair, "=")
    if (index(circle, pair[1]) == 1)
      least = pair[2] + 0
  }
  return least
}
$1 == "may" {
  is_listed[$2] = 1
  for (i = 2; i <= NF; i++)
    is_allowed[$2, $i] = 1
  next
}
$1 == "source" {
  is_source[$2] = 1
  is_built = $2 ~ /\.c$/ && $2 !~ /^(tests\/)?gpu\/|_x86\.c$/ # of the others, a build may lack the object or what is in it
  sub(/\.[^.\/]*$/, "", $2)
  is_source[$2] = 1
  if (is_built)
    wanted[$2] = 1
  next
}
{
  object = $1
  sub(/:$/, "", object)
  if (!(object in file_of))
    file_of[object] = source_of(object)
  file = file_of[object]
  if (file == "")
    next
  files[file] = 1
  if ($3 == "U") {
    uses[file, $2] = 1
  } else if ($3 ~ /^[TDBRCi]$/) { # weak ones are what every C++ object has for itself
    definer[$2] = file
    definer_in[$2, folder_of(file)] = file
  }
}
END {
  for (key in uses) {
    split(key, part, SUBSEP)
    user = part[1]
    symbol = part[2]
    if (!(symbol in definer))
      continue
    from = folder_of(user)
    used = (symbol, from) in definer_in ? definer_in[symbol, from] : definer[symbol]
    if (used == user)
      continue
    to = folder_of(used)
    if (!((user, used) in symbols))
      file_arrows[user] = file_arrows[user] " " used
    symbols[user, used] = symbols[user, used] " " symbol
    if (from == to)
      continue
    message = user ".o uses " symbol " of " used ".o"
    if (!((from, to) in example))
      folder_arrows[from] = folder_arrows[from] " " to
    if (!((from, to) in example) || message < example[from, to])
      example[from, to] = message
    folders[from] = folders[to] = 1
    if (!((from, to) in is_allowed))
      print "use\t" from "\t" message
  }
  for (file in wanted)
    if (!(file in files))
      print "unread\t" file ".c\tno object of " file ".c was read"
  for (file in files)
    if (!(folder_of(file) in is_listed))
      print "use\t" folder_of(file) "\t" file ".o is in a folder that no line names"
  find_circles(folder_arrows, folders, folder_circle, folder_circle_size)
  for (key in example) {
    split(key, part, SUBSEP)
    if (part[1] in folder_circle && part[2] in folder_circle && folder_circle[part[1]] == folder_circle[part[2]])
      print "folders\t" folder_circle[part[1]] "\t" example[key]
  }
  find_circles(file_arrows, files, file_circle, file_circle_size)
  for (key in symbols) {
    split(key, part, SUBSEP)
    if (!(part[1] in file_circle && part[2] in file_circle) || file_circle[part[1]] != file_circle[part[2]])
      continue
    if (file_circle_size[part[1]] > limit_of(file_circle[part[1]]))
      print "files\t" file_circle[part[1]] "\t" part[1] ".o uses" symbols[key] " of " part[2] ".o"
  }
}
