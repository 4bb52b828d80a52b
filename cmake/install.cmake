# What `cmake --install` lays down: headers, library, program, CMake package and pkg-config file.
install(DIRECTORY include/strobe TYPE INCLUDE)
install(TARGETS strobe LIBRARY ARCHIVE)
