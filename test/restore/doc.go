// Package restore loses clusters for good and makes new ones of what is left: of
// a backup, of one server's data directory, of damaged files, and of servers of
// another version. The binary and its processes are real; what is checked is what
// clients and workers see.
package restore
