// Package duty is the work that only a leader does. A duty is a function that
// lasts as long as the office: it starts when the term's opening entry is
// applied, ends with its context, and returns only when everything it started
// has ended.
//
// Courier takes what apply wants said to workers and hands it to the gateways
// that hold their sessions. What it promises: as long as an attempt is LEASED
// or a cancel is wanted, its worker is told again and again, at most five
// seconds apart; nothing uncommitted is ever sent; and a slow or dead gateway
// holds up neither the apply goroutine nor another gateway. What it does not
// promise is order or exactly once: workers drop a repeat by attempt id.
//
//	apply --Offer--> [route of gateway A] --Carry--> gateway A
//	                 [route of gateway B] --Carry--> gateway B
//
// An effect is only a hint. The truth is looked up in the machine the moment
// before it is sent, so a hint that came late, twice or from an old office does
// no harm, and one that was lost (a new leader, a full route) is found again in
// the machine's list of what is undelivered.
//
// The package knows neither raft nor sockets.
package duty
