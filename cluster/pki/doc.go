// Package pki makes and uses what a secure cluster knows itself by: the cluster
// secret, and the certificates of its nodes, of its HTTP ports and of clients.
//
// Three authorities are kept apart, because a certificate that is good at one
// door must be good at no other:
//
//	node    node to node (raft, rpc): both sides show one, TLS 1.3 only
//	http    what a node shows to clients, workers and browsers
//	client  by what a client says at the HTTP port who it is
//
// A node's name is one URI in its certificate, pulse://<cluster>/node/<id>. It
// is compared exactly, by the server with "some node of my cluster" and by the
// client with the very node it meant to reach. Host names are in the
// certificates for other programs' sake; between nodes they decide nothing.
//
// Init makes a directory for the operator to keep; the nodes' parts of it are
// ready to be copied:
//
//	cluster.json        the cluster's name and how far a rotation has come
//	cluster.secret      gossip key, lease key and cluster id are derived of it
//	ca/                 the authorities with their keys: keep it off the nodes
//	<node id>/          all that this node needs, its keys among it
//	clients/<name>/     all that this client needs
//	revoked/            what Revoke put away
//
// Init, AddNode and AddClient never overwrite anything; List shows what is there. Renew and RotateCA
// replace certificates in place, Revoke adds to the list of what is no longer
// believed; after each of them the nodes' directories are copied again. None of
// them may run at the same time as another on the same directory.
//
// A running node looks at its files again when it shakes hands, at most once a
// second, so a copy is all that a rotation takes. Files that make no sense are
// reported and the last good ones stay in use. A connection that is open stays
// open: who was let in is looked at when it connects.
//
// The package starts no goroutine but a Listener's, which end before its Close
// returns. It never logs a key, and it never asks the network anything.
package pki
