//! Launchers: a function for each kernel, a file for each family. They check shapes and types, choose a grid, and launch.
