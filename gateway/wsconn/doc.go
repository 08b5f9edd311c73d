// Package wsconn is the mechanics of one WebSocket connection on the server's
// side: the upgrade and its limits, whole messages in, a bounded queue of
// frames out, liveness, and an end with a close code. It knows nothing of what
// the frames mean; a surface (gateway/pulse) gives it bytes and a close code.
//
// Who runs where. Acceptor.Accept and Conn.Serve run on the goroutine of the
// HTTP request, which is the connection's owner and its reader. Serve starts
// one writer and waits for it, so that when Serve returns nothing of the
// connection is left. Send, Offer, Close and Cut may be called from anywhere
// and never block.
//
//	Accept ──> Serve: read ──> receive(Message) ─ ─ ─ ─> Send, Offer ──> queue
//	                  │                                                    │
//	                  │   Close(code): what is queued, then the close      v
//	                  └── Cut(cause): at once                        writer: ping,
//	                                                            flush, handshake
//
// Promises. The queue is bounded in frames and bytes: Offer is refused when it
// is full, and the reader takes no new message while it is, so that answers
// are bounded too; a peer that leaves it full is cut off. A flush has a
// deadline. A peer that sends neither a message nor a pong for LiveFor is cut
// off, and so is one that takes as long for a single message. The last frames
// before a Close are written before the close frame. Every wait has a bound,
// so that Serve ends within CloseWithin plus WriteWithin of Close.
//
// The library underneath is github.com/coder/websocket. Three of its habits
// shaped this package: it flushes after every message, so writes are held back
// and leave in one system call (see heldConn); its Close reads the rest of an
// unfinished message without a deadline, so the socket gets one first; and its
// read limit closes before a word can be said about it, so the limit is kept
// here and the surface gets to say it.
package wsconn
