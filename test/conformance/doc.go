// Package conformance holds a whole node to the worker protocol, and to the
// rules of tasks, keys, receipts, sessions, limits and errors that its users
// rely on. It looks at the node only from outside: through sockets written by
// hand, not through the SDK or a library the server uses too, and through the
// HTTP API.
//
// Every frame of every test, in both directions, is held to the published JSON
// Schema and to what the schema cannot say (link.take): which answer fits which
// frame, that each is given once, which session it names, that nothing follows a
// fatal error. Every answer of the API is held to the form and status of its
// kind (answer.conforms). A test is named as the sentence it holds.
//
// Most tests share one node, each with a namespace of its own, and wait side by
// side: whatever takes real time takes it once. What disturbs others has a node
// of its own. Nothing sleeps to be right.
//
// What is not here, because it cannot be brought about from outside or takes
// longer than a test run may, is held elsewhere: the 24 hours of an
// Idempotency-Key and of an idle instance's row, the 60 seconds of a lost
// session, leases re-armed by elections and the order of due items in fsm and
// test/property; a gateway that dies alone, refused forwards and outcomes that
// stay unknown in gateway/session, rpc and cluster; kill -9 in test/cluster. The
// error codes that nobody outside can provoke are listed in codes_test.go, each
// with its reason.
package conformance
