// Package agentapi is what the CNI plugin and the commands say to the node's
// agent over its Unix socket.
//
// A client connects, sends one Request as a line of JSON, and keeps the
// connection open until it has its answer. ADD, DEL, CHECK and GC are answered with
// one Response; status, drain and uninstall are answered with any number of Responses
// that carry an item, and one with End set. Closing the connection early withdraws the
// request: WithPeer turns that into a context. Connections are accepted in the
// order in which they were made, which tells whether a DEL came before an ADD or
// after it.
//
// Requests are read strictly, because an agent that skips a field it does not
// know does half of what it was asked. Answers are read leniently, because the
// shape of an Error is the same in all versions: a peer of another version must
// still be able to say so.
//
// Deadlines on accepted connections are the server's: ReadRequest waits as long
// as its reader does, so a server sets a read deadline before it and clears it
// afterwards.
//
// The run directory (RunDir) belongs to the agent and holds the socket and,
// beside it, the files whose names and meaning are shared by both sides.
//
// # Failures it survives
//
//   - A socket that is missing, left over, refused or full: ErrAbsent.
//   - An agent that dies before or in the middle of its answer: ErrBroken.
//   - A client that is gone before its turn (WithPeer), or that connects and says
//     nothing (Await, Waits).
//   - A peer of another version; a request or answer that is cut off, followed by more
//     bytes, too long, or not JSON; error texts of any length.
//   - A run directory with the wrong mode; a ready file of an earlier boot.
//   - A socket or a lock that is removed or replaced, or its directory: the agent sees
//     it ([Listener.InPlace], [NodeLock.Keep]) and puts it there again. Clients that
//     have connected are not lost. If another agent was faster, it has the node.
package agentapi
