# Writes OUTPUT, a C++ source with the text of SOURCES, a folder: its x/y/<type with _ for ->.md as the notes
# of plugin types (src/assembly/plugin_notes.h).
file(GLOB_RECURSE files ${SOURCES}/*.md)
list(FILTER files EXCLUDE REGEX "/README\\.md$")
list(SORT files)
set(lines "")
foreach(file IN LISTS files)
  get_filename_component(type ${file} NAME_WE)
  string(REPLACE "_" "-" type ${type})
  file(READ ${file} text)
  string(APPEND lines "    {\"${type}\", R\"~md~(${text})~md~\"},\n")
endforeach()
file(WRITE ${OUTPUT} "#include \"assembly/plugin_notes.h\"

namespace penstock::assembly {

std::span<const PluginNotes> plugin_notes() {
  static constexpr PluginNotes kNotes[] = {
${lines}  };
  return kNotes;
}

}  // namespace penstock::assembly
")
