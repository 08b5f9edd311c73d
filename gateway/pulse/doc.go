// Package pulse speaks subprotocol pulse.worker.v1: it turns the frames of a
// worker's connection into calls of its session, and what the session says back
// into frames. schema/workerv1 has the frames, gateway/wsconn the socket,
// gateway/session the session; what is left is here: which frame is allowed
// when, which errors answer a frame and which end the connection, and how rows
// read as frames.
//
// Handler serves GET /v1/worker. Each request becomes a connection that lives
// on the request's goroutine: it reads frames, and a frame is dispatched before
// the next one is read. A hello is waited for, because nothing can be said
// before it; all other frames are answered from the session's goroutines, in
// whatever order they are decided. Messages to the worker go through the
// connection's bounded queue and never wait.
//
// An error frame that answers a frame has reply_to; one without reply_to ends
// the connection, and so does one whose code the catalogue marks fatal.
//
// What the protocol leaves open and is settled here:
//
//   - A refused hello may be repeated on the same connection, up to eight times
//     and within the ten seconds; a hello that is under way when they end is
//     given its answer first.
//   - Answers come in the order in which they are decided. Frames about one
//     attempt are decided in the order in which they came.
//   - A frame that was read is carried to its end though the connection ends.
//   - While the gateway shuts down, frames get unavailable until the close.
//   - A worker that has 512 frames unanswered, or its queue of outgoing frames
//     full, is not read from until that changes. Assignments and cancels that
//     find the queue full are left out; the leader repeats them.
package pulse
