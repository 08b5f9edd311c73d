package main

import (
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"pulse/cluster/pki"
)

// The verbs of this file work on the operator's directory of certificates. They
// ask no server anything.

// issuedRow is a certificate that was made.
type issuedRow struct {
	For      string    `json:"for"`
	Path     string    `json:"path"`
	NotAfter time.Time `json:"not_after"`
}

var issuedColumns = []column[issuedRow]{
	{"FOR", func(c issuedRow) string { return c.For }},
	{"CERTIFICATE", func(c issuedRow) string { return c.Path }},
	{"ENDS", func(c issuedRow) string { return c.NotAfter.Local().Format(time.DateTime) }},
}

// printIssued lists what was made and says, to people, what to do with it.
func (a *app) printIssued(cmd *cobra.Command, issued []pki.Issued, next string) error {
	walk := func(yield func(issuedRow, error) bool) {
		for _, i := range issued {
			if !yield(issuedRow{i.For, i.Path, i.NotAfter.UTC()}, nil) {
				return
			}
		}
	}
	if err := printList(a, cmd, issuedColumns, iter.Seq2[issuedRow, error](walk), 0, "Nothing was made: it is all there."); err != nil {
		return err
	}
	if a.format == formatTable && next != "" {
		fmt.Fprintln(cmd.OutOrStdout(), "\n"+next)
	}
	return nil
}

func validityFlag(cmd *cobra.Command, validity *span) {
	cmd.Flags().Var(validity, "validity", "how long the certificates are good, e.g. 90d (default 365d)")
}

// nodeSpec reads ID=HOST,...
func nodeSpec(text string) (pki.NodeSpec, error) {
	id, hosts, found := strings.Cut(text, "=")
	if !found || id == "" || hosts == "" {
		return pki.NodeSpec{}, usagef("%q is no node: give ID=HOST,… with the names and addresses it is reached at", text)
	}
	return pki.NodeSpec{ID: id, Hosts: strings.Split(hosts, ",")}, nil
}

func (a *app) initTLSCommand() *cobra.Command {
	var o pki.InitOptions
	var nodes, gateways []string
	var validity span
	cmd := &cobra.Command{
		Use:   "init-tls DIR",
		Short: "Make the certificates and the secret of a new cluster",
		Long: `Make DIR, with all that the nodes and clients of a new cluster need to know each other:

  DIR/NODE/            for that node: give it as --certs to 'pulse server'
  DIR/clients/NAME/    for that client: PULSE_CACERT, PULSE_CLIENT_CERT, PULSE_CLIENT_KEY
  DIR/ca/              the authorities and their keys
  DIR/cluster.secret   gossip and leases are keyed with it

Copy each node its own directory, and keep DIR itself on no node: whoever has DIR/ca
makes certificates that the cluster believes.

A node is --node ID=HOST,… with the names and addresses under which nodes and clients
call it, without ports. A balancer's name belongs there too if it passes TLS through.
--gateway is the same for 'pulse gateway': its certificate is not good for a vote.
A client may do everything that the API offers; make one for each person and program.

A DIR that holds anything is refused. With --keep it is taken as it is, and only nodes
and clients that it lacks are made, so that a start script can say the same each time.`,
		Example: `  pulse cluster init-tls certs --cluster prod --client admin \
    --node node-1=node-1.example.org --node node-2=node-2.example.org \
    --node node-3=node-3.example.org
  pulse cluster init-tls certs --node node-1=localhost,127.0.0.1 --client admin`,
		Args: exactly("DIR"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(nodes) == 0 {
				return usagef("--node is missing: give ID=HOST,… once for each node")
			}
			for _, text := range nodes {
				spec, err := nodeSpec(text)
				if err != nil {
					return err
				}
				o.Nodes = append(o.Nodes, spec)
			}
			for _, text := range gateways {
				spec, err := nodeSpec(text)
				if err != nil {
					return err
				}
				o.Gateways = append(o.Gateways, spec)
			}
			o.Validity = time.Duration(validity)
			issued, err := pki.Init(args[0], o)
			if err != nil {
				return err
			}
			return a.printIssued(cmd, issued, fmt.Sprintf("Copy each node its directory, e.g. %s/%s, and keep %[1]s itself, with the keys of the authorities, on none.", args[0], o.Nodes[0].ID))
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVar(&o.Cluster, "cluster", "", "name of the cluster in its certificates, a-z, 0-9 and - (default: one is drawn)")
	flags.StringArrayVar(&nodes, "node", nil, "a node and its hosts, ID=HOST,…; repeat it for each node")
	flags.StringArrayVar(&gateways, "gateway", nil, "a node without a vote and its hosts, ID=HOST,…; repeat it for each")
	flags.StringArrayVar(&o.Clients, "client", nil, "a client; repeat it for each")
	validityFlag(cmd, &validity)
	flags.BoolVar(&o.Keep, "keep", false, "take a DIR that is there as it is, and make what it lacks")
	return cmd
}

func (a *app) addNodeCommand() *cobra.Command {
	var validity span
	var gateway bool
	cmd := &cobra.Command{
		Use:   "add-node DIR ID=HOST,…",
		Short: "Make the certificates of one more node",
		Long: `Make the directory of one more node in DIR, which 'pulse cluster init-tls' has made. That
of a --gateway is not good for a vote.`,
		Example: "  pulse cluster add-node certs node-4=node-4.example.org\n" +
			"  pulse cluster add-node --gateway certs gateway-1=gateway-1.example.org",
		Args: exactly("DIR", "ID=HOST,…"),
		RunE: func(cmd *cobra.Command, args []string) error {
			spec, err := nodeSpec(args[1])
			if err != nil {
				return err
			}
			add := pki.AddNode
			if gateway {
				add = pki.AddGateway
			}
			issued, err := add(args[0], spec, time.Duration(validity))
			if err != nil {
				return err
			}
			return a.printIssued(cmd, issued, fmt.Sprintf("Copy %s/%s to the node and start it there with --certs.", args[0], spec.ID))
		},
	}
	cmd.Flags().BoolVar(&gateway, "gateway", false, "for 'pulse gateway'")
	validityFlag(cmd, &validity)
	return cmd
}

func (a *app) addClientCommand() *cobra.Command {
	var validity span
	cmd := &cobra.Command{
		Use:   "add-client DIR NAME",
		Short: "Make the certificate of one more client",
		Long: `Make the directory of one more client in DIR, which 'pulse cluster init-tls' has made. A
client may do everything that the API offers; what it does is recorded as client/NAME.`,
		Example: "  pulse cluster add-client certs billing",
		Args:    exactly("DIR", "NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			issued, err := pki.AddClient(args[0], args[1], time.Duration(validity))
			if err != nil {
				return err
			}
			own := args[0] + "/clients/" + args[1]
			return a.printIssued(cmd, issued, fmt.Sprintf("It is used with\n  PULSE_CACERT=%[1]s/%[2]s PULSE_CLIENT_CERT=%[1]s/%[3]s PULSE_CLIENT_KEY=%[1]s/%[4]s",
				own, pki.HTTPCAFile, pki.ClientCertFile, pki.ClientKeyFile))
		},
	}
	validityFlag(cmd, &validity)
	return cmd
}

// copyAgain is what follows a change of certificates that are in use.
const copyAgain = "Copy the directories to their nodes and clients again; running ones take them up by themselves."

func (a *app) renewCommand() *cobra.Command {
	var o pki.RenewOptions
	var validity span
	cmd := &cobra.Command{
		Use:   "renew DIR",
		Short: "Make certificates anew before they end",
		Long: `Make new keys and certificates, with the names of the old ones, in DIR: of everybody,
or of the nodes and clients that are named. Then copy the directories to their places
again; nodes and workers that run take them up within a second or two.`,
		Example: "  pulse cluster renew certs\n  pulse cluster renew certs --node node-1 --validity 90d",
		Args:    exactly("DIR"),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.Validity = time.Duration(validity)
			issued, err := pki.Renew(args[0], o)
			if err != nil {
				return err
			}
			return a.printIssued(cmd, issued, copyAgain)
		},
	}
	cmd.Flags().StringArrayVar(&o.Nodes, "node", nil, "only this node; may be repeated")
	cmd.Flags().StringArrayVar(&o.Clients, "client", nil, "only this client; may be repeated")
	validityFlag(cmd, &validity)
	return cmd
}

// rotateDone is what is printed about a step of a rotation.
type rotateDone struct {
	CA     string      `json:"ca"`
	Step   string      `json:"step"`
	Next   string      `json:"next"`
	Issued []issuedRow `json:"issued"`
}

// rotateNext is what follows each step.
var rotateNext = map[string]string{
	pki.Begun:    "Step 1 of 3: the new CA is believed beside the old one. Copy the directories to all nodes and clients, then run this again.",
	pki.Switched: "Step 2 of 3: certificates are of the new CA now. Copy the directories to all nodes and clients, then run this again.",
	pki.Finished: "Step 3 of 3: the old CA is believed no more. Copy the directories to all nodes and clients; that is all.",
}

func (a *app) rotateCACommand() *cobra.Command {
	var validity span
	cmd := &cobra.Command{
		Use:   "rotate-ca DIR node|http|client",
		Short: "Take the next of three steps in replacing an authority",
		Long: `Replace one of the three authorities while everything runs:

  node     signs what nodes show to each other
  http     signs what nodes show to clients, workers and browsers
  client   signs what those show to nodes

It takes three calls: with the first the new authority is believed beside the old one,
with the second all certificates are made anew under it, with the third the old one is
believed no more. After each, copy the directories in DIR to all nodes and clients before
the next: everybody has to believe the new authority before anybody shows a certificate
of it. 'pulse cluster certs' says which step a rotation is at.`,
		Example: "  pulse cluster rotate-ca certs node",
		Args: func(cmd *cobra.Command, args []string) error {
			if err := exactly("DIR", "CA")(cmd, args); err != nil {
				return err
			}
			if !slices.Contains(pki.CAs, args[1]) {
				return fmt.Errorf("there is no %q CA: give one of %s", args[1], strings.Join(pki.CAs, ", "))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			step, issued, err := pki.RotateCA(args[0], args[1], time.Duration(validity))
			if err != nil {
				return err
			}
			done := rotateDone{CA: args[1], Step: step, Next: rotateNext[step], Issued: []issuedRow{}}
			for _, i := range issued {
				done.Issued = append(done.Issued, issuedRow{i.For, i.Path, i.NotAfter.UTC()})
			}
			return a.done(cmd, done, "%s", done.Next)
		},
	}
	validityFlag(cmd, &validity)
	return cmd
}

// revokeDone is what is printed about a withdrawal.
type revokeDone struct {
	Node   string `json:"node,omitempty"`
	Client string `json:"client,omitempty"`
}

func (a *app) revokeCommand() *cobra.Command {
	var node, client string
	cmd := &cobra.Command{
		Use:   "revoke DIR",
		Short: "Withdraw every certificate of a node or a client",
		Long: `Withdraw every certificate that a node or a client was ever given, and put its directory
away. Nodes refuse it from the moment that the list of the withdrawn has been copied to
them with their directories. A client is refused at its next request; a node at its next
connection, so stop it too, and 'pulse cluster remove' it.

Clients and workers know no such list: whoever has a node's stolen keys can pass for a
server to them until the http CA has been replaced ('pulse cluster rotate-ca').`,
		Example: "  pulse cluster revoke certs --node node-3\n  pulse cluster revoke certs --client billing",
		Args:    exactly("DIR"),
		RunE: func(cmd *cobra.Command, args []string) error {
			var err error
			switch {
			case (node == "") == (client == ""):
				return usagef("say whose certificates: --node ID or --client NAME, one of them")
			case node != "":
				err = pki.Revoke(args[0], node)
			default:
				err = pki.RevokeClient(args[0], client)
			}
			if err != nil {
				return err
			}
			return a.done(cmd, revokeDone{node, client}, "%s is withdrawn. Copy the directories to all nodes: they refuse it from then on.", node+client)
		},
	}
	cmd.Flags().StringVar(&node, "node", "", "the node")
	cmd.Flags().StringVar(&client, "client", "", "the client")
	return cmd
}

// certificateRow is a certificate that a directory holds.
type certificateRow struct {
	For      string    `json:"for"`
	Use      string    `json:"use"`
	Hosts    []string  `json:"hosts,omitempty"`
	Path     string    `json:"path"`
	NotAfter time.Time `json:"not_after"`
}

var certificateColumns = []column[certificateRow]{
	{"FOR", func(c certificateRow) string { return c.For }},
	{"USE", func(c certificateRow) string { return c.Use }},
	{"ENDS", func(c certificateRow) string {
		left := time.Until(c.NotAfter)
		if left < 0 {
			return "ENDED " + spell(-left) + " ago"
		}
		return "in " + spell(left)
	}},
	{"HOSTS", func(c certificateRow) string { return strings.Join(c.Hosts, " ") }},
}

func (a *app) certsCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "certs DIR",
		Short: "List the certificates in an operator's directory and when they end",
		Long: `List what DIR holds, which 'pulse cluster init-tls' has made: the authorities, and the
certificates of nodes and clients with the hosts they are for. A rotation that is under
way is said, on standard error. The exit code is 1 if one of them has ended.`,
		Example: "  pulse cluster certs certs\n  pulse cluster certs certs -o jsonl",
		Args:    exactly("DIR"),
		RunE: func(cmd *cobra.Command, args []string) error {
			listing, err := pki.List(args[0])
			if err != nil {
				return err
			}
			ended := false
			walk := func(yield func(certificateRow, error) bool) {
				for _, c := range listing.Certificates {
					ended = ended || time.Now().After(c.NotAfter)
					if !yield(certificateRow{c.For, c.Use, c.Hosts, c.Path, c.NotAfter.UTC()}, nil) {
						return
					}
				}
			}
			if err := printList(a, cmd, certificateColumns, iter.Seq2[certificateRow, error](walk), 0, "No certificates."); err != nil {
				return err
			}
			for _, ca := range slices.Sorted(maps.Keys(listing.Rotations)) {
				fmt.Fprintf(cmd.ErrOrStderr(), "The %s CA is being replaced. %s\n", ca, rotateNext[listing.Rotations[ca]])
			}
			if ended {
				return errSilent
			}
			return nil
		},
	}
}
