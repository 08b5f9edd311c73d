// Package session keeps the live worker sessions of one node and speaks for
// them to the replicated state. It is neutral to protocols: a surface
// (gateway/pulse) turns its frames into calls of a Handle and is called back
// through Conn; commands, results and rows are those of package pb.
//
// It owns: which sessions this process holds (Hub), the order and the number of
// commands a connection may have under way (Handle), the lease secrets, which
// are made and checked here and nowhere else (LeaseKey), and whom a connection
// speaks for (Identity).
//
//	            Attach          Register ok        Welcomed
//	surface ──────────> fresh ─────────────> held ──────────> open
//	                      │      deliveries are kept   │  deliveries go to Conn
//	                      └───────────────┬────────────┘
//	                                      v   Close, or told to by the state
//	                                    closed ──> CloseSession
//
// Promises. A session is listed in the gateway's report exactly while its
// connection is alive; a report never speaks about a registration that is still
// under way. Nothing is delivered before the surface has said welcome. Commands
// about one attempt reach the backend in the order they were given, commands
// about different attempts do not wait for each other. A command whose lease
// secret is wrong never leaves the gateway. A command is never sent twice.
//
// Goroutines. Hub.Run is the owner of the report and of the closing of
// sessions; it returns when both have ended. A Handle's commands run on
// goroutines that Drain and Close wait for. Deliver may be called from anywhere
// and never waits for a worker.
//
// It never touches a socket, a frame or the machine, and decides nothing that
// the state decides.
package session
